// Line and bar charts as SVG of a bounded number of nodes: one path for each line, band or kind of bar.
//
// A chart is { title, x: {label, min, max}, y: {label, min, max}, lines or bars, baseline, mark, read }:
//   lines  [{ name, kind, x, y, low, high }]        low and high, if there, are drawn as a band
//   bars   [{ name, kind, values }] with `edges`    stacked; bar b goes from edges[b] to edges[b + 1]
//   read   (index) => text                          said below the chart for the point or bar under the cursor
// kind, 0 to 3, chooses colour and dash or hatching, so that no two kinds differ by colour alone.

const MARGIN = { left: 66, right: 12, top: 10, bottom: 38 }, HEIGHT = 210;

/** About `count` round numbers from low to high. */
function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) out.push(Number((k * step).toPrecision(12)));
  return out;
}

/** Lowest and highest finite value; widened where they are the same. */
function extent(arrays) {
  let low = Infinity, high = -Infinity;
  for (const values of arrays) for (const v of values ?? []) if (Number.isFinite(v)) { low = Math.min(low, v); high = Math.max(high, v); }
  if (low > high) return [0, 1];
  return low === high ? [low - Math.abs(low || 1) * 0.5, high + Math.abs(high || 1) * 0.5] : [low, high];
}

const scale = (low, high, from, to) => (value) => from + ((value - low) / (high - low)) * (to - from);

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

function axes(spec, width, X, Y, xs, ys) {
  const right = width - MARGIN.right, bottom = HEIGHT - MARGIN.bottom, out = [];
  for (const v of ys) {
    out.push(svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: Y(v), y2: Y(v) }));
    out.push(svg("text", { class: "tick end", x: MARGIN.left - 6, y: Y(v) + 4 }, short(v)));
  }
  for (const v of xs) {
    out.push(svg("line", { class: "axis", x1: X(v), x2: X(v), y1: bottom, y2: bottom + 4 }));
    out.push(svg("text", { class: "tick middle", x: X(v), y: bottom + 16 }, short(v)));
  }
  out.push(svg("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }));
  out.push(svg("text", { class: "label middle", x: (MARGIN.left + right) / 2, y: HEIGHT - 4 }, spec.x.label));
  const middle = (MARGIN.top + bottom) / 2;
  out.push(svg("text", { class: "label middle", transform: `translate(12 ${middle}) rotate(-90)` }, spec.y.label));
  return out;
}

function drawLines(spec, X, Y) {
  const out = [];
  if (spec.baseline !== undefined)
    out.push(svg("line", { class: "baseline", x1: X(spec.x.min), x2: X(spec.x.max), y1: Y(spec.baseline), y2: Y(spec.baseline) }));
  for (const { kind, x, y, low, high } of spec.lines) {
    if (low) {
      const there = [...x.keys()].filter((i) => Number.isFinite(low[i]) && Number.isFinite(high[i]));
      const edge = [...there.map((i) => [X(x[i]), Y(high[i])]), ...there.reverse().map((i) => [X(x[i]), Y(low[i])])];
      if (edge.length) out.push(svg("path", { class: `band k${kind}`, d: `${path(edge)}Z` }));
    }
    const points = [...x.keys()].filter((i) => Number.isFinite(y[i])).map((i) => [X(x[i]), Y(y[i])]);
    out.push(svg("path", { class: `line k${kind}`, d: path(points) }));
    // A line through few points hides where they are; one point alone would be no line at all.
    if (points.length <= 24)
      out.push(svg("path", { class: `dots k${kind}`, d: points.map(([a, b]) => `M${a.toFixed(1)} ${b.toFixed(1)}h0`).join("") }));
  }
  return out;
}

function drawBars(spec, X, Y) {
  const sums = new Float64Array(spec.edges.length - 1), out = [];
  for (const { kind, values } of spec.bars) {
    let d = "";
    values.forEach((value, b) => {
      if (value > 0) {
        const x1 = X(spec.edges[b]) + 0.5, x2 = Math.max(X(spec.edges[b + 1]) - 0.5, x1 + 0.5);
        d += `M${x1.toFixed(1)} ${Y(sums[b]).toFixed(1)}V${Y(sums[b] + value).toFixed(1)}H${x2.toFixed(1)}V${Y(sums[b]).toFixed(1)}Z`;
      }
      sums[b] += value;
    });
    out.push(svg("path", { class: `bar k${kind}`, d }));
    if (kind) out.push(svg("path", { class: "hatch", fill: `url(#hatch${kind})`, d }));
  }
  if (spec.mark !== undefined && spec.mark !== null) {
    out.push(svg("line", { class: "mark", x1: X(spec.mark), x2: X(spec.mark), y1: MARGIN.top, y2: Y(0) }));
  }
  return out;
}

function hatchings() {
  const lines = { 1: "M0 6L6 0", 2: "M0 3H6", 3: "M3 0V6" };
  return svg("defs", {}, Object.entries(lines).map(([kind, d]) =>
    svg("pattern", { id: `hatch${kind}`, width: 6, height: 6, patternUnits: "userSpaceOnUse" }, svg("path", { class: "hatching", d }))));
}

function legend(spec) {
  const items = spec.lines ?? spec.bars;
  if (items.length < 2) return "";
  const swatch = (kind) => spec.lines
    ? svg("path", { class: `line k${kind}`, d: "M1 6H27" })
    : [svg("rect", { class: `bar k${kind}`, width: 28, height: 12 }), kind ? svg("rect", { fill: `url(#hatch${kind})`, width: 28, height: 12 }) : null];
  return el("p", { class: "chart-legend", "aria-hidden": "true" }, items.map(({ name, kind }) =>
    el("span", {}, svg("svg", { width: 28, height: 12 }, swatch(kind)), name)));
}

/** A chart that redraws itself when its width changes. `show(spec)` draws another one in its place. */
class Chart {
  constructor(spec) {
    this.heading = el("h3");
    this.picture = svg("svg", { role: "img", tabindex: 0, height: HEIGHT });
    this.readout = el("p", { class: "readout", "aria-live": "polite" });
    this.legend = el("div");
    this.node = el("figure", { class: "chart" }, this.heading, this.picture, this.readout, this.legend);
    this.picture.addEventListener("pointermove", (event) => this.#point(event));
    this.picture.addEventListener("pointerleave", () => this.#mark(null));
    this.picture.addEventListener("blur", () => this.#mark(null));
    this.picture.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#draw()).observe(this.node);
    this.show(spec);
  }

  show(spec) {
    this.spec = spec;
    this.at = null;
    this.heading.textContent = spec.title;
    this.picture.setAttribute("aria-label", `${spec.title}: ${spec.y.label} by ${spec.x.label}. ${spec.summary ?? ""} Arrow keys read values.`);
    this.legend.replaceChildren(legend(spec));
    this.#draw();
  }

  /** Where the cursor can stand, in units of the x axis. */
  #stops() {
    const { lines, edges } = this.spec;
    if (!lines) return edges.slice(0, -1).map((edge, b) => (edge + edges[b + 1]) / 2);
    return [...new Set(lines.flatMap((line) => [...line.x]))].sort((a, b) => a - b);
  }

  #draw() {
    const width = this.node.clientWidth, { spec } = this;
    if (!width) return;
    const bottom = HEIGHT - MARGIN.bottom;
    this.X = scale(spec.x.min, spec.x.max, MARGIN.left, width - MARGIN.right);
    const Y = scale(spec.y.min, spec.y.max, bottom, MARGIN.top);
    const xs = ticks(spec.x.min, spec.x.max, Math.max(3, width / 90)).filter((v) => !spec.x.whole || Number.isInteger(v));
    this.cursor = svg("line", { class: "cursor", y1: MARGIN.top, y2: bottom, visibility: "hidden" });
    this.picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.picture.replaceChildren(
      ...axes(spec, width, this.X, Y, xs, ticks(spec.y.min, spec.y.max, 4)),
      ...(spec.lines ? drawLines(spec, this.X, Y) : drawBars(spec, this.X, Y)),
      this.cursor,
    );
    this.#mark(this.at);
  }

  #point(event) {
    const box = this.picture.getBoundingClientRect(), x = event.clientX - box.left, stops = this.#stops();
    let best = 0;
    stops.forEach((stop, i) => { if (Math.abs(this.X(stop) - x) < Math.abs(this.X(stops[best]) - x)) best = i; });
    this.#mark(best);
  }

  #key(event) {
    const last = this.#stops().length - 1, at = this.at ?? -1;
    const to = { ArrowRight: Math.min(at + 1, last), ArrowLeft: Math.max(at - 1, 0), Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.#mark(to);
  }

  #mark(at) {
    const stops = this.#stops();
    this.at = at !== null && at < stops.length ? at : null;
    this.cursor?.setAttribute("visibility", this.at === null ? "hidden" : "visible");
    if (this.at === null) { this.readout.textContent = this.spec.summary ?? ""; return; }
    this.cursor?.setAttribute("x1", this.X(stops[at]));
    this.cursor?.setAttribute("x2", this.X(stops[at]));
    this.readout.textContent = this.spec.lines ? this.#linesAt(stops[at]) : this.spec.read(at);
  }

  #linesAt(x) {
    const values = this.spec.lines.map((line) => {
      const i = line.x.indexOf(x);
      if (i < 0) return null;
      const band = line.low && Number.isFinite(line.low[i]) ? ` (${short(line.low[i])} to ${short(line.high[i])})` : "";
      return `${this.spec.lines.length > 1 ? `${line.name} ` : ""}${short(line.y[i])}${band}`;
    });
    return `${this.spec.x.name ?? this.spec.x.label} ${short(x)}: ${values.filter(Boolean).join(", ")}`;
  }
}
