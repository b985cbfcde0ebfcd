// Unpack, draw each section that the run has something for, and say so.

const SECTIONS = { curves, steps, compare, rollouts };

function notes(run, body) {
  if (!run.notes.length) return false;
  body.append(el("ul", {}, run.notes.map((note) => el("li", {}, note))));
  return true;
}

async function main() {
  const holder = document.getElementById("payload"), loading = document.getElementById("loading");
  if (typeof DecompressionStream === "undefined") throw new Error("this browser is too old: it has no DecompressionStream");
  const run = await unpack(holder.textContent);
  holder.remove();
  document.body.prepend(svg("svg", { width: 0, height: 0, class: "definitions", "aria-hidden": "true" }, hatchings()));
  for (const [name, draw] of Object.entries({ ...SECTIONS, notes })) {
    const section = document.getElementById(name);
    // Shown first: a chart asks for its width.
    section.hidden = false;
    if (!draw(run, section.querySelector(".body"))) {
      section.hidden = true;
      document.querySelector(`nav a[href="#${name}"]`).remove();
    }
  }
  loading.remove();
  performance.mark("report:ready");
  document.documentElement.dataset.ready = "yes";
}

main().catch((error) => {
  console.error(error);
  const loading = document.getElementById("loading");
  (loading ?? document.querySelector("main")).textContent = `The run could not be shown: ${error.message}`;
  document.documentElement.dataset.ready = "failed";
});
