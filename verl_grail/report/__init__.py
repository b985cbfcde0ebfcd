"""Finished training runs as a table, four plots and one HTML page: ``python -m verl_grail.report RUN_ROOT --out DIR``.

Reads ``RUN_ROOT/<method>/`` (``metrics.jsonl`` of verl's file logger, ``rollouts/<step>.jsonl``, optional
``val_n.json``) and writes ``index.html`` and the PNG files to DIR. Data flows one way through the modules::

    runs (files -> Run)  ->  table, plots, rollouts (which to show)  ->  page (HTML)  ->  build (all of it)

Whatever is missing or broken in a run becomes a named note that is printed and put on the page; only a run root
that holds no run at all is an error. Nothing here imports verl or torch; pandas, matplotlib and rich come with the
extra ``verl-grail[eval]`` and are imported when first used.

Left out on purpose: significance tests between methods (one run per method and seed cannot carry them) and any
smoothing of the curves.
"""

from verl_grail.report.build import write_report
from verl_grail.report.page import rollouts_page
from verl_grail.report.plots import write_plots
from verl_grail.report.rollouts import Rollout
from verl_grail.report.runs import Run, RunRootError, load_runs
from verl_grail.report.table import print_table, summary_table

__all__ = [
    "Rollout",
    "Run",
    "RunRootError",
    "load_runs",
    "print_table",
    "rollouts_page",
    "summary_table",
    "write_plots",
    "write_report",
]
