"""Time to open and to filter the page of ``verl-grail report``, in headless Chromium.

    python scripts/bench/report_page.py [--rollouts 10240] [--tokens 200]        about a minute; prints a table

Makes up a run (the plugin's writer of dump columns gives its lines), builds the page, opens it from its file, and reads
the page's own time marks. Needs chromium, its driver and the extra ``dev``. Times are this machine's and depend on its
load; what does not is the size of the file and the number of elements.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.report import browser  # noqa: E402
from tests.report.synthetic import write_run  # noqa: E402
from verl_grail.report.run import build_report  # noqa: E402

STEPS, SAMPLES = 40, 8
FILTERS = (
    ("a verdict", "f-verdict", "1"),
    ("a step", "f-step", "7"),
    ("a range of weights", "f-weight-low", "1.05"),
    ("a text, first search", "f-text", "therefore"),
    ("a text, later search", "f-text", "hence"),
    ("sorted by bonus", "f-sort", "bonus"),
)
SET = """
const done = arguments[2], field = document.getElementById(arguments[0]);
performance.clearMeasures("report:filter");
document.querySelector("#f-reset").click();
performance.clearMeasures("report:filter");
field.value = arguments[1];
field.dispatchEvent(new Event("input", { bubbles: true }));
const wait = () => {
  const found = performance.getEntriesByName("report:filter");
  if (found.length) done([found[0].duration, document.querySelector("#matches").textContent]); else setTimeout(wait, 5);
};
wait();
"""


def main() -> int:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=10_240)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--opens", type=int, default=5, help="times that the page is opened; the median is printed")
    args = parser.parse_args()
    if reason := browser.why_not():
        print(reason, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        prompts = max(1, args.rollouts // (STEPS * SAMPLES))
        run = write_run(Path(folder) / "run", STEPS, prompts, SAMPLES, args.tokens)
        start = time.perf_counter()
        done = build_report(run, max_rollouts=10**9, max_tokens=10**9)
        built = time.perf_counter() - start
        dump = sum(p.stat().st_size for p in (run / "rollouts").iterdir())
        print(f"{done.kept} rollouts of about {args.tokens} tokens; dump {dump / 1e6:.1f} MB")
        print(f"page {done.page.stat().st_size / 1e6:.1f} MB, built in {built:.1f} s")
        with browser.chromium() as driver:
            measure(driver, done.page, args.opens)
    return 0


def measure(driver, page: Path, opens: int) -> None:
    """Open the page and filter."""
    times = []
    for _ in range(opens):
        browser.show(driver, page)
        times.append(driver.execute_script("return performance.getEntriesByName('report:ready')[0].startTime"))
    print(f"opened in {statistics.median(times):.0f} ms (median of {opens}: navigation to all sections drawn)")
    print(f"elements: {driver.execute_script('return document.querySelectorAll(`*`).length')}")
    for name, field, value in FILTERS:
        took, matches = driver.execute_async_script(SET, field, value)
        print(f"filter by {name}: {took:.1f} ms, {matches}")


if __name__ == "__main__":
    sys.exit(main())
