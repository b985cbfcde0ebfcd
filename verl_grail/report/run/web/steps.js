// Weight histogram, profile over the reasoning and cosines: of one step, or of all together.

const PROFILES = [["all", 0], ["correct", 1], ["wrong", 2]];

/** Highest value of a list of lists. */
const highest = (lists) => Math.max(1e-9, ...lists.map((values) => Math.max(0, ...values)));

function shares(step, regions) {
  const total = step.weights.flat().reduce((a, b) => a + b, 0);
  return regions.map((_, r) => step.weights[r].map((n) => (total ? (100 * n) / total : 0)));
}

const stacked = (lists) => lists[0].map((_, b) => lists.reduce((sum, list) => sum + list[b], 0));

/** Functions from a step's sums to a chart, with axes that are the same for every step. */
class StepCharts {
  constructor(sums) {
    this.sums = sums;
    this.regions = sums.regions.slice(0, -1);
    const { each } = sums, bins = each[0].weights[0].length;
    const used = stacked(each.at(-1).weights).map((n, b) => (n ? b : -1)).filter((b) => b >= 0);
    this.from = Math.max(0, (used[0] ?? 0) - 1);
    this.to = (used.at(-1) ?? 0) + 4;
    this.top = highest(each.map((step) => (bins ? stacked(shares(step, this.regions)) : [])));
    const means = each.flatMap((s) => Object.values(s.profiles).flatMap((p) => (p.mean ? [p.mean] : [])));
    this.profileRange = extent([...means, [1]]);
    this.cosineTop = highest(each.map((step) => step.cosines.map((n) => (100 * n) / (step.with_cosine || 1))));
    const all = each.at(-1).cosines;
    this.cosineFrom = Math.max(0, all.findIndex((n) => n) - 1);
    this.cosineTo = Math.min(all.length, all.findLastIndex((n) => n) + 2);
  }

  get hasWeights() { return this.sums.each.at(-1).weighted > 0; }

  get hasCosines() { return this.sums.each.at(-1).with_cosine > 0; }

  histogram(step) {
    const { weight_bin: width } = this.sums, { from, to } = this, values = shares(step, this.regions);
    const edges = Array.from({ length: to - from + 1 }, (_, b) => Number(((from + b) * width).toFixed(6)));
    const bars = this.regions.map((name, kind) => ({ name, kind, values: values[kind].slice(from, to) }));
    const tokens = step.weights.flat().reduce((a, b) => a + b, 0);
    return {
      title: "Token weights", bars, edges,
      summary: `${tokens.toLocaleString("en")} tokens of ${step.weighted.toLocaleString("en")} weighted rollouts, of ${step.rollouts.toLocaleString("en")}.`,
      x: { label: "token weight", min: edges[0], max: edges.at(-1) },
      y: { label: "% of tokens", min: 0, max: this.top },
      read: (b) => `weight ${short(edges[b])} to ${short(edges[b + 1])}: ` +
        (bars.filter((bar) => bar.values[b] > 0).map((bar) => `${bar.name} ${short(bar.values[b])} %`).join(", ") || "none"),
    };
  }

  profile(step) {
    const lines = PROFILES.filter(([name]) => step.profiles[name].mean).map(([name, kind]) => {
      const { mean, half, rollouts, prompts } = step.profiles[name];
      const x = mean.map((_, b) => Number(((100 * (b + 0.5)) / mean.length).toFixed(2)));
      const line = { name: `${name} (${rollouts})`, kind, x, y: mean, prompts };
      if (half) Object.assign(line, { low: mean.map((m, b) => m - half[b]), high: mean.map((m, b) => m + half[b]) });
      return line;
    });
    // Where all weighted rollouts have one verdict, a line for "all" would cover theirs.
    const shown = lines.length === 2 ? lines.slice(1) : lines;
    const [low, high] = extent([this.profileRange, ...shown.flatMap((l) => [l.low, l.high])]), space = 0.05 * (high - low);
    return {
      title: "Mean weight over the reasoning", lines: shown, baseline: 1,
      summary: lines.length ? `${shown.map((l) => l.name).join(", ")} rollouts of ${lines[0].prompts} prompts; band: 95 % interval of the mean.` : "No weighted rollout in this step.",
      x: { label: "position in the reasoning, % (100: the answer begins)", name: "at %", min: 0, max: 100 },
      y: { label: "mean weight", min: low - space, max: high + space },
    };
  }

  cosine(step) {
    const { cosineFrom: from, cosineTo: to } = this, bins = step.cosines.length;
    const edges = Array.from({ length: to - from + 1 }, (_, b) => Number((-1 + (2 * (from + b)) / bins).toFixed(6)));
    const values = step.cosines.slice(from, to).map((n) => (100 * n) / (step.with_cosine || 1));
    return {
      title: "Cosines with the expert, passing rollouts", bars: [{ name: "rollouts", kind: 0, values }], edges, mark: step.cosine_mean,
      summary: step.with_cosine ? `${step.with_cosine.toLocaleString("en")} rollouts, mean ${short(step.cosine_mean)} (dashed line).` : "No rollout with a cosine in this step.",
      x: { label: "cosine", min: edges[0], max: edges.at(-1) },
      y: { label: "% of rollouts", min: 0, max: this.cosineTop },
      read: (b) => `cosine ${short(edges[b])} to ${short(edges[b + 1])}: ${step.cosines[from + b]} rollouts, ${short(values[b])} %`,
    };
  }
}

function steps(run, body) {
  const { sums } = run;
  if (!sums.each.length) return false;
  const charts = new StepCharts(sums), count = sums.steps.length;
  const views = [
    ...(charts.hasWeights ? [(s) => charts.histogram(s), (s) => charts.profile(s)] : []),
    ...(charts.hasCosines ? [(s) => charts.cosine(s)] : []),
  ];
  if (!views.length) {
    body.append(el("p", {}, "This run's dumps hold neither token weights nor cosines."));
    return true;
  }
  const drawn = views.map((view) => new Chart(view(sums.each.at(-1))));
  const slider = el("input", { type: "range", id: "step-slider", min: 0, max: count, value: count, step: 1 });
  const said = el("output", { for: "step-slider", id: "step-said" });
  const show = () => {
    const at = Number(slider.value), text = at === count ? `all ${count} steps` : `step ${sums.steps[at]}`;
    said.textContent = text;
    slider.setAttribute("aria-valuetext", text);
    drawn.forEach((chart, i) => chart.show(views[i](sums.each[at])));
  };
  slider.addEventListener("input", show);
  show();
  body.append(
    el("p", { class: "controls slider" }, labelled("step", slider, "the right end: all steps together"), said),
    el("div", { class: "charts" }, drawn.map((chart) => chart.node)));
  return true;
}
