// Of one prompt: the rollout with the highest bonus, the one with the lowest, and the expert solution between them.

/** Prompts with two rollouts that have a bonus, widest apart first: [{best, worst, spread, count}], rows by number. */
function contrasts(run) {
  const { group, bonus, cosine } = run.rows, members = new Map();
  for (let i = 0; i < run.count; i++) {
    if (Number.isNaN(bonus[i])) continue;
    if (!members.has(group[i])) members.set(group[i], []);
    members.get(group[i]).push(i);
  }
  // Most bonuses of a prompt are 0: among equal ones the cosine decides.
  const order = (a, b) => bonus[a] - bonus[b] || (cosine[a] || 0) - (cosine[b] || 0);
  return [...members.values()].filter((rows) => rows.length > 1).map((rows) => {
    rows.sort(order);
    const worst = rows[0], best = rows.at(-1);
    return { best, worst, count: rows.length, spread: bonus[best] - bonus[worst], gap: cosine[best] - cosine[worst] };
  }).sort((a, b) => b.spread - a.spread || b.gap - a.gap);
}

function compare(run, body) {
  const all = contrasts(run);
  if (!all.length) return false;
  const stepBox = el("select", { id: "compare-step" }, option("", "all steps"), run.sums.steps.map((step, s) => option(s, `step ${step}`)));
  const place = el("input", { type: "number", min: 1, value: 1, id: "compare-place" });
  const said = el("output", { for: "compare-place" });
  const back = el("button", { type: "button" }, "← wider apart"), on = el("button", { type: "button" }, "closer →");
  const view = el("div");
  const list = () => (stepBox.value === "" ? all : all.filter(({ best }) => run.rows.step[best] === Number(stepBox.value)));
  function show() {
    const found = list(), at = Math.min(Math.max(Math.trunc(Number(place.value)) || 1, 1), Math.max(found.length, 1));
    place.value = at;
    place.max = found.length;
    back.disabled = at <= 1;
    on.disabled = at >= found.length;
    said.textContent = `of ${found.length} prompts with at least two bonuses`;
    view.replaceChildren(found.length ? contrast(run, found[at - 1]) : el("p", {}, "No prompt of this step has two rollouts with a bonus."));
  }
  const move = (by) => () => { place.value = Number(place.value) + by; show(); };
  back.addEventListener("click", move(-1));
  on.addEventListener("click", move(1));
  place.addEventListener("change", show);
  stepBox.addEventListener("change", () => { place.value = 1; show(); });
  show();
  body.append(el("p", { class: "controls" }, labelled("step", stepBox), back, labelled("prompt", place), said, on), legendOfTokens(), view);
  return true;
}

function contrast(run, { best, worst, count, spread }) {
  const solutions = solutionsOf(run, best), { bonus, cosine } = run.rows;
  const why = spread > 0
    ? `Bonuses of this prompt's ${count} rollouts lie ${number(spread)} apart.`
    : `All ${count} rollouts of this prompt have the same bonus; shown are the highest and the lowest cosine.`;
  const column = (title, ...content) => el("article", {}, el("h3", {}, title), ...content);
  const expert = solutions.length
    ? solutions.map((text, k) => [solutions.length > 1 ? el("h4", {}, `solution ${k + 1}`) : null, plain(text)])
    : el("p", { class: "note" }, "No expert solution in the dump.");
  const numbers = (i) => `bonus ${number(bonus[i])}, cosine ${number(cosine[i])}`;
  return el("div", {}, el("p", { class: "note" }, why), folded("prompt", run.prompts[run.rows.prompt[best]]),
    el("div", { class: "columns" },
      column(`Best: ${numbers(best)}`, facts(run, best), tokens(run, best)),
      column("Expert solution", expert),
      column(`Worst: ${numbers(worst)}`, facts(run, worst), tokens(run, worst))));
}
