// Filters, a list of one page at a time, and the chosen rollout. However many rollouts, the nodes are those of a page.

const PAGE = 25;
const SORTS = {
  file: ["order in the dump", (run) => null],
  bonus: ["bonus", (run) => run.rows.bonus],
  cosine: ["cosine", (run) => run.rows.cosine],
  score: ["score (with bonus)", (run) => run.rows.score],
  length: ["length", (run) => run.rows.length],
  weight: ["mean weight", (run) => run.rows.mean_weight],
};
const RANGES = [["weight", "mean weight", "mean_weight"], ["bonus", "bonus", "bonus"], ["cosine", "cosine", "cosine"], ["score", "score", "score"], ["length", "tokens", "length"]];

/** A number field's value; NaN if it is empty. */
const asked = (field) => (field.value.trim() === "" ? NaN : Number(field.value));

/** Rows that pass, in the order asked for. A range leaves out rows without that number. */
function matching(run, filter) {
  const { rows } = run, found = [];
  const ranges = filter.ranges.filter(({ low, high }) => !Number.isNaN(low) || !Number.isNaN(high));
  const text = filter.text.toLowerCase(), texts = text ? run.searchTexts() : null;
  const inPrompt = text ? run.prompts.map((prompt) => prompt.toLowerCase().includes(text)) : null;
  const inGold = text ? run.golds.map((gold) => gold.toLowerCase().includes(text)) : null;
  for (let i = 0; i < run.count; i++) {
    if (filter.step !== null && rows.step[i] !== filter.step) continue;
    if (filter.group !== null && rows.group[i] !== filter.group) continue;
    if (filter.verdict !== null && rows.verdict[i] !== filter.verdict) continue;
    if (filter.answer !== null && run.hasAnswer(i) !== filter.answer) continue;
    if (filter.outcome !== null && rows.weight_outcome[i] !== filter.outcome) continue;
    if (!ranges.every(({ column, low, high }) => !(column[i] < low || column[i] > high) && !Number.isNaN(column[i]))) continue;
    if (text && !(inPrompt[rows.prompt[i]] || inGold[rows.gold[i]] || texts[i].includes(text))) continue;
    found.push(i);
  }
  const column = SORTS[filter.sort][1](run), sign = filter.ascending ? 1 : -1;
  // Rows without the number come last, in both directions.
  const missing = (i) => (Number.isNaN(column[i]) ? 1 : 0);
  if (column) found.sort((a, b) => missing(a) - missing(b) || (missing(a) ? 0 : sign * (column[a] - column[b])) || a - b);
  else if (!filter.ascending) found.reverse();
  return found;
}

class Filters {
  constructor(run, changed) {
    this.run = run;
    this.group = null;
    const choice = (id, ...options) => el("select", { id }, options);
    const present = new Set(run.rows.weight_outcome);
    this.step = choice("f-step", option("", "all"), run.sums.steps.map((step, s) => option(s, step)));
    this.verdict = choice("f-verdict", option("", "all"), option(1, "correct"), option(0, "wrong"), option(2, "unknown"));
    this.answer = choice("f-answer", option("", "all"), option(1, "yes"), option(0, "no"));
    this.outcome = choice("f-outcome", option("", "all"), run.weight_outcomes.map((name, k) => (present.has(k) ? option(k, name || "none") : null)).filter(Boolean));
    this.text = el("input", { type: "search", id: "f-text", autocomplete: "off", placeholder: "prompt, gold or response" });
    this.sort = choice("f-sort", Object.entries(SORTS).map(([key, [name]]) => option(key, name)));
    this.order = choice("f-order", option("desc", "highest first"), option("asc", "lowest first"));
    this.order.value = "asc";
    this.ranges = RANGES.map(([id, name, column]) => {
      const field = (end) => el("input", { type: "number", step: "any", id: `f-${id}-${end}`, "aria-label": `${name}, ${end === "low" ? "from" : "to"}` });
      return { name, column: run.rows[column], low: field("low"), high: field("high") };
    });
    this.only = el("button", { type: "button", class: "chip", hidden: true, onclick: () => { this.group = null; changed(); } }, "one prompt only ✕");
    const reset = el("button", { type: "button", id: "f-reset", onclick: () => { this.group = null; this.node.reset(); this.order.value = "asc"; changed(); } }, "reset");
    this.node = el("form", { class: "filters", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() },
      labelled("search", this.text, "case does not matter"), labelled("step", this.step), labelled("verdict", this.verdict),
      labelled("has answer", this.answer), labelled("weights", this.outcome, "what became of the rollout's weights"),
      this.ranges.map(({ name, low, high }) => el("fieldset", {}, el("legend", {}, name), low, el("span", { "aria-hidden": "true" }, "to"), high)),
      labelled("sort by", this.sort), labelled("order", this.order), this.only, reset);
    const soon = debounce(changed, 120);
    this.node.addEventListener("input", (event) => (event.target.tagName === "SELECT" ? changed() : soon()));
  }

  read() {
    const chosen = (box) => (box.value === "" ? null : Number(box.value));
    this.only.hidden = this.group === null;
    return {
      step: chosen(this.step), verdict: chosen(this.verdict), outcome: chosen(this.outcome), group: this.group,
      answer: this.answer.value === "" ? null : this.answer.value === "1", text: this.text.value.trim(),
      ranges: this.ranges.map(({ column, low, high }) => ({ column, low: asked(low), high: asked(high) })),
      sort: this.sort.value, ascending: this.order.value === "asc",
    };
  }
}

function listItem(run, i, chosen, choose) {
  const { rows } = run, cut = (text, size) => (text.length > size ? `${text.slice(0, size - 1)}…` : text);
  const answer = run.answerText(i), gold = run.golds[rows.gold[i]];
  const numbers = [["bonus", rows.bonus[i]], ["cos", rows.cosine[i]], ["score", rows.score[i]], ["w̄", rows.mean_weight[i]]]
    .filter(([, value]) => !Number.isNaN(value)).map(([name, value]) => `${name} ${number(value)}`);
  if (rows.length[i]) numbers.push(`${rows.length[i]} tokens`);
  return el("li", {}, el("button", { type: "button", "data-row": i, "aria-pressed": String(chosen), onclick: () => choose(i) },
    el("span", { class: `first ${VERDICT_CLASSES[rows.verdict[i]]}` }, `${VERDICTS[rows.verdict[i]]} · step ${run.stepOf(i)} · `,
      el("bdi", {}, answer === null ? "no answer" : `answer ${cut(answer, 24)}`), gold ? el("bdi", {}, ` (gold ${cut(gold, 24)})`) : null),
    el("span", { class: "numbers" }, numbers.join(" · ")),
    el("bdi", { class: "preview" }, cut(run.text(i, 0, Math.min(rows.length[i], 40)).replaceAll(/\s+/g, " "), 90))));
}

function rollouts(run, body) {
  if (!run.count) return false;
  let found = [], at = 0, chosen = null;
  const status = el("p", { id: "matches", role: "status" }), list = el("ol", { class: "list" }), detail = el("div", { class: "detail" });
  const back = el("button", { type: "button" }, "← previous"), on = el("button", { type: "button" }, "next →"), place = el("span");
  const filters = new Filters(run, () => { at = 0; update(); });
  function update() {
    performance.mark("filter:start");
    found = matching(run, filters.read());
    status.textContent = `${found.length.toLocaleString("en")} of ${run.count.toLocaleString("en")} rollouts`;
    page();
    performance.measure("report:filter", "filter:start");
  }
  function page() {
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    list.replaceChildren(...found.slice(at * PAGE, (at + 1) * PAGE).map((i) => listItem(run, i, i === chosen, choose)));
    place.textContent = `page ${at + 1} of ${pages}`;
    back.disabled = at === 0;
    on.disabled = at + 1 >= pages;
  }
  function choose(i, move = true) {
    chosen = i;
    for (const button of list.querySelectorAll("button")) button.setAttribute("aria-pressed", String(Number(button.dataset.row) === i));
    const group = el("button", { type: "button", onclick: () => { filters.group = run.rows.group[i]; at = 0; update(); } }, "only this prompt's rollouts");
    const solutions = solutionsOf(run, i);
    detail.replaceChildren(facts(run, i), el("p", {}, group), folded("prompt", run.prompts[run.rows.prompt[i]]),
      ...solutions.map((text, k) => folded(solutions.length > 1 ? `expert solution ${k + 1}` : "expert solution", text)), tokens(run, i));
    // On a narrow page the rollout opens below the list, out of sight.
    if (move && detail.getBoundingClientRect().top > window.innerHeight * 0.8) detail.scrollIntoView({ block: "start" });
  }
  back.addEventListener("click", () => { at -= 1; page(); });
  on.addEventListener("click", () => { at += 1; page(); });
  if (run.count < run.total)
    body.append(el("p", { class: "warning", id: "sampled" }, `A sample: ${run.count.toLocaleString("en")} of the ${run.total.toLocaleString("en")} dumped rollouts ` +
      "are on this page, whole prompts of every step where they fit, and each step's best and worst bonus. The charts above are of all. --max-rollouts and --max-tokens keep more."));
  body.append(filters.node, status, legendOfTokens(), el("div", { class: "master" },
    el("div", {}, list, el("p", { class: "controls pager" }, back, place, on)), detail));
  update();
  choose(found[0], false);
  return true;
}
