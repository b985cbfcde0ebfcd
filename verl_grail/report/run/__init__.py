"""One run's dumps as one HTML file and as pictures for a paper: ``verl-grail report RUN_DIR``.

Data flows one way through the modules::

    collect (files -> rollouts kept, sums per step)  ->  payload (bytes)  ->  page (HTML, with the files of web/)
       regions, sums (per-rollout mathematics), sample   ->  figures (PNG)

A dump is read line by line, one step at a time. Every rollout enters the sums from which the charts are drawn; of the
rollouts themselves only a bounded sample is kept for the page, and the page says so.

Nothing here imports verl or torch. numpy, matplotlib and scipy come with the extra ``verl-grail[eval]``.
"""

from verl_grail.report.run.build import RunReport, build_report

__all__ = ["RunReport", "build_report"]
