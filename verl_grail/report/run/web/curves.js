// Metrics over the training steps. The usual ones that the run logged, and any other by its name.

/** Panels in their order: title, y label, and the metrics of its lines ([name, metric, metric of its deviation]). */
const PANELS = [
  ["Reward", "mean reward", [["reward", "critic/rewards/mean"]]],
  ["Score", "mean score", [["score", "critic/score/mean"]]],
  ["Token weight, mean and standard deviation", "weight", [["GRAIL", "grail/weight_mean", "grail/weight_std"], ["OAR-G", "oar_g/weight_mean", "oar_g/weight_std"]], 1],
  ["Clipped weights", "share of scored tokens", [["at w_min", "grail/clip_frac_min"], ["at w_max", "grail/clip_frac_max"]]],
  ["Answers found", "share of rollouts", [["GRAIL", "grail/answer_found_rate"], ["OAR-G", "oar_g/answer_found_rate"]]],
  ["Cosine with the expert, mean and standard deviation", "cosine", [["cosine", "gar/cosine_mean", "gar/cosine_std"]]],
  ["Bonus", "mean bonus", [["bonus", "gar/bonus_mean"]]],
  ["Verdicts", "share of rollouts", [["correct", "reward/correct_rate"], ["graded", "reward/graded_rate"], ["pass (GAR)", "gar/gate_rate"]]],
  ["Entropy", "nats", [["entropy", "actor/entropy"]]],
  ["Response length", "mean tokens", [["length", "response_length/mean"]]],
];

function accuracyPanel(metrics) {
  const names = Object.keys(metrics).filter((name) => name.startsWith("val-core/") && name.includes("/acc/mean@")).slice(0, 4);
  return names.length ? ["Validation accuracy", "accuracy", names.map((name) => [name.slice("val-core/".length), name])] : null;
}

function curveSpec(metrics, [title, label, wanted, baseline]) {
  const lines = wanted.filter(([, metric]) => metrics[metric]).map(([name, metric, deviation], kind) => {
    const [x, y] = metrics[metric], line = { name, kind, x, y };
    if (metrics[deviation]) {
      const of = new Map(metrics[deviation][0].map((step, i) => [step, metrics[deviation][1][i]]));
      line.low = x.map((step, i) => y[i] - of.get(step));
      line.high = x.map((step, i) => y[i] + of.get(step));
    }
    return line;
  });
  if (!lines.length) return null;
  const [xMin, xMax] = extent(lines.map((line) => line.x));
  const [yMin, yMax] = extent([...lines.flatMap((line) => [line.y, line.low, line.high]), baseline === undefined ? [] : [baseline]]);
  const space = 0.05 * (yMax - yMin);
  const last = lines.map((line) => `${lines.length > 1 ? `${line.name} ` : ""}${short(line.y.at(-1))}`).join(", ");
  return {
    title, lines, baseline, summary: `Last: ${last}.`,
    x: { label: "training step", name: "step", min: xMin, max: xMax, whole: true },
    y: { label, min: yMin - space, max: yMax + space },
  };
}

function curves(run, body) {
  const { metrics } = run, names = Object.keys(metrics).sort();
  if (!names.length) return false;
  const accuracy = accuracyPanel(metrics);
  const specs = [PANELS[0], accuracy, ...PANELS.slice(1)].filter(Boolean).map((panel) => curveSpec(metrics, panel)).filter(Boolean);
  // Without reward shaping the score is the reward.
  const same = JSON.stringify(metrics["critic/score/mean"]) === JSON.stringify(metrics["critic/rewards/mean"]);
  const grid = el("div", { class: "charts" }, specs.filter((spec) => !(same && spec.title === "Score")).map((spec) => new Chart(spec).node));
  const other = new Chart(curveSpec(metrics, [names[0], "value", [[names[0], names[0]]]]));
  const field = el("input", { type: "search", list: "metric-names", placeholder: "name or part of it", autocomplete: "off", id: "metric" });
  const found = el("output", { for: "metric" });
  const show = () => {
    const asked = field.value.trim().toLowerCase();
    const matches = names.filter((name) => name.toLowerCase().includes(asked));
    const name = matches.find((n) => n.toLowerCase() === asked) ?? matches[0];
    found.textContent = `${matches.length} of ${names.length} metrics`;
    if (name) other.show(curveSpec(metrics, [name, "value", [[name, name]]]));
  };
  field.addEventListener("input", debounce(show, 100));
  show();
  body.append(grid, el("details", { class: "other" }, el("summary", {}, `Any of the ${names.length} logged metrics`),
    el("p", { class: "controls" }, labelled("metric", field), found, el("datalist", { id: "metric-names" }, names.map((name) => option(name)))),
    other.node));
  return true;
}
