"""From a folder of runs to the whole report."""

from __future__ import annotations

from pathlib import Path

from verl_grail.report.page import rollouts_page
from verl_grail.report.plots import write_plots
from verl_grail.report.rollouts import Pick, pick_gar, pick_grail
from verl_grail.report.runs import Run, load_runs
from verl_grail.report.table import print_table, summary_notes, summary_table


def write_report(run_root: Path, out: Path, title: str, methods: list[str] | None = None) -> Path:
    """Write ``index.html`` and the plots to `out`, print the table and the notes, and return the page's path.

    Raises:
        RunRootError: `run_root` does not exist or holds no run.
        ModuleNotFoundError: the extra ``eval`` is not installed.
    """
    _require_eval()
    runs = [run for run in load_runs(run_root) if methods is None or run.method in methods]
    table = summary_table(runs)
    plots, plot_notes = write_plots(runs, out)
    picks, pick_notes = choose_rollouts(runs)
    notes = [note for run in runs for note in (*run.notes, *summary_notes(run))] + plot_notes + pick_notes
    page = out / "index.html"
    page.write_text(rollouts_page(title, table, plots, picks, notes), encoding="utf-8")
    print_table(table, title=title)
    for note in notes:
        print(f"note: {note}")
    return page


def choose_rollouts(runs: list[Run]) -> tuple[dict[str, list[Pick]], list[str]]:
    """The rollouts to show of each method that has a signal, and a note where a signal left nothing to show.

    Plain GRPO is not shown: without weights and cosines its rollouts are only text.
    """
    picks: dict[str, list[Pick]] = {}
    notes: list[str] = []
    for run in runs:
        chosen: list[Pick] = []
        # A GAR run may dump a GRAIL outcome for every row too; only "weighted" or the metric says GRAIL was on.
        if run.has("grail/") or run.has("oar_g/") or any(r.weight_outcome == "weighted" for r in run.rollouts):
            chosen += (grail := pick_grail(run.rollouts))
            if run.rollouts and not any(pick.rollout.weight_outcome == "weighted" for pick in grail):
                notes.append(f"{run.method}: no rollout of step {run.rollouts[0].step} got token weights")
        if run.has("gar/") or any(r.cosine is not None for r in run.rollouts):
            chosen += (gar := pick_gar(run.rollouts))
            if run.rollouts and not gar:
                notes.append(f"{run.method}: no prompt of step {run.rollouts[0].step} has two rollouts with a cosine")
        picks[run.method] = chosen
    return picks, notes


def _require_eval() -> None:
    """Fail before any work is done, and with the mend."""
    for name in ("pandas", "matplotlib", "rich"):
        try:
            __import__(name)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"the report needs {name}: pip install 'verl-grail[eval]'") from error
