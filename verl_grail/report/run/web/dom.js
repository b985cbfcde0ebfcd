// Small helpers. Text of the run reaches the page as text nodes and attribute values only, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

const MISSING = "–";
const number = (value, digits = 3) => (Number.isFinite(value) ? value.toFixed(digits) : MISSING);

/** A number as an axis or a readout shows it: four digits, no trailing zeros. */
function short(value) {
  if (!Number.isFinite(value)) return MISSING;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

/** Call `work` once, `wait` ms after the last call of the function returned. */
function debounce(work, wait) {
  let timer = 0;
  return () => { clearTimeout(timer); timer = setTimeout(work, wait); };
}

const labelled = (text, control, hint) => el("label", { title: hint }, el("span", {}, text), control);
const option = (value, text) => el("option", { value }, text);
