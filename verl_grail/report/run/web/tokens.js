// A response with every token coloured by its weight. Colour scale as in verl_grail/report/colours.py.

/** Tokens drawn at once; a longer response gets a button for the next ones. */
const TOKENS_AT_ONCE = 4000;

/** Side of the scale and strength from 0 to 1. */
function strength(weight) {
  if (!Number.isFinite(weight) || weight === 1) return ["", 0];
  const [side, end] = weight < 1 ? ["low", WEIGHT_LOW] : ["high", WEIGHT_HIGH];
  return [side, Math.sqrt(Math.min(1, weight <= 0 ? 1 : Math.log(weight) / Math.log(end)))];
}

/** Text with marks at whitespace. The style sheet draws the marks, so that copied text stays exact. */
function marked(text) {
  return text.split(/(\n|\t| {2,})/).flatMap((piece, i) => {
    if (i % 2 === 0) return piece ? [piece] : [];
    if (piece === "\n") return [el("i", { class: "nl" }, piece)];
    if (piece === "\t") return [el("i", { class: "tab" }, piece)];
    return [...piece].map((space) => el("i", { class: "sp" }, space));
  });
}

const plain = (text) => el("div", { class: "text", tabindex: 0 }, marked(text));

const visible = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣");

/** What is said about one token. */
function tokenNote(run, i, t, regions) {
  const weight = run.weight(i, t), base = run.advantage(i);
  const said = [`token ${t + 1} of ${regions.length} “${visible(run.token(i, t))}”`, run.sums.regions[regions[t]], `weight ${number(weight)}`];
  if (base && sameNumber(...base) && regions[t] !== MASKED)
    said.push(`advantage ${number(base[0] * (Number.isFinite(weight) ? weight : 1), 4)}`);
  return said.join(" · ");
}

/** Equal up to the rounding of the dumps. */
const sameNumber = (a, b) => Math.abs(a - b) <= 1e-4 + 2e-3 * Math.max(Math.abs(a), Math.abs(b));

function tokenSpan(run, i, t, region) {
  const weight = run.weight(i, t), [side, share] = strength(weight), text = run.token(i, t);
  const span = el("span", { class: `tok ${side} ${run.sums.regions[region]}`, "data-t": t, "data-w": Number.isFinite(weight) ? weight.toFixed(2) : undefined },
    // A token that is one space would be an invisible patch between its neighbours.
    text === " " ? el("i", { class: "sp" }, " ") : marked(text));
  if (side) span.style.setProperty("--t", share.toFixed(2));
  return span;
}

/** The tokens of row i, and below them a line about the one under the pointer or the cursor. */
function tokens(run, i) {
  const length = run.rows.length[i];
  if (!length) return el("div", {}, plain(run.text(i)), el("p", { class: "note" }, "This run dumped no tokens, so there are no weights to show."));
  const regions = run.regions(i);
  const box = el("div", { class: "text tokens", tabindex: 0, role: "group", "aria-label": "Response. Arrow keys go from token to token." });
  const about = el("p", { class: "readout", "aria-live": "polite" }, "Point at a token, or use the arrow keys, for its weight.");
  let drawn = 0, current = null;
  const more = el("button", { type: "button", onclick: () => draw() });
  function draw() {
    const end = Math.min(drawn + TOKENS_AT_ONCE, length), batch = document.createDocumentFragment();
    for (let t = drawn; t < end; t++) batch.append(tokenSpan(run, i, t, regions[t]));
    box.append(batch);
    drawn = end;
    more.textContent = `Show ${Math.min(TOKENS_AT_ONCE, length - drawn)} more of ${length - drawn} tokens`;
    more.hidden = drawn === length;
  }
  function point(span) {
    current?.classList.remove("current");
    current = span;
    current.classList.add("current");
    about.textContent = tokenNote(run, i, Number(span.dataset.t), regions);
  }
  box.addEventListener("pointerover", (event) => { const span = event.target.closest(".tok"); if (span) point(span); });
  box.addEventListener("keydown", (event) => {
    const at = current ? Number(current.dataset.t) : -1;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: drawn - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    point(box.children[Math.min(Math.max(to, 0), drawn - 1)]);
    current.scrollIntoView({ block: "nearest" });
  });
  draw();
  return el("div", {}, box, about, more);
}

const LEGEND_WEIGHTS = [0.5, 0.7, 1, 1.5, 2.5, 5];

/** The colour scale and the marks of the regions, with a switch that writes the weights out. */
function legendOfTokens() {
  const swatch = (weight) => {
    const [side, share] = strength(weight), node = el("span", { class: `swatch ${side}` }, String(weight));
    node.style.setProperty("--t", share.toFixed(2));
    return node;
  };
  const switched = ({ target: { checked } }) => {
    document.body.classList.toggle("write-weights", checked);
    for (const box of document.querySelectorAll(".write-switch")) box.checked = checked;
  };
  const write = el("input", { type: "checkbox", class: "write-switch", onchange: switched });
  return el("div", { class: "legend" },
    el("p", {}, "token weight: ", LEGEND_WEIGHTS.map(swatch), " ", el("label", { class: "inline" }, write, " write weights ≠ 1 out")),
    el("p", {}, "marks: ", ["content", "delimiter", "post", "masked"].map((name) => [el("span", { class: `sample ${name}` }, name), " "]),
      "(the answer's content; its markers and braces; what follows it; not the policy's tokens) · ↵ newline ⇥ tab · space"));
}

const VERDICT_CLASSES = ["bad", "good", ""];

/** Name and value of what is known of a rollout. */
function facts(run, i) {
  const { rows } = run, base = run.advantage(i);
  const outcome = (table, column) => table[column[i]];
  const all = [
    ["verdict", el("span", { class: VERDICT_CLASSES[rows.verdict[i]] }, VERDICTS[rows.verdict[i]])],
    ["gold", run.golds[rows.gold[i]]],
    ["answer", run.answerText(i)],
    ["score", number(rows.score[i])],
    ["cosine", number(rows.cosine[i])],
    ["bonus", number(rows.bonus[i])],
    ["mean weight", number(rows.mean_weight[i])],
    ["base advantage", base ? (sameNumber(...base) ? number(base[0], 4) : `${number(base[0], 4)} to ${number(base[1], 4)}`) : MISSING],
    ["weights", outcome(run.weight_outcomes, rows.weight_outcome)],
    ["GAR", outcome(run.gar_outcomes, rows.gar_outcome)],
    ["reward", outcome(run.reward_outcomes, rows.reward_outcome)],
    ["tokens", rows.length[i] || ""],
    ["step", run.stepOf(i)],
    ["rollout", `${run.groups[rows.group[i]].split(":").slice(1).join(":").slice(0, 8)} ${run.members[rows.member[i]]}`],
  ];
  return el("dl", {}, all.filter(([, value]) => value !== "" && value !== null && value !== MISSING)
    .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

/** Expert solutions of a row's prompt; empty without any. */
const solutionsOf = (run, i) => run.solutions[run.rows.group[i]] ?? [];

const folded = (title, text) => el("details", {}, el("summary", {}, title), plain(text));
