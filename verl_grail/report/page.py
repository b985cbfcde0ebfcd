"""The report as one HTML file that needs nothing else: styles and pictures are inside it."""

from __future__ import annotations

import base64
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from verl_grail.report.colours import css_variables
from verl_grail.report.rollouts import Pick
from verl_grail.report.table import CAPTION, display_table
from verl_grail.report.tokens import clean, legend_html, rollout_html

if TYPE_CHECKING:
    import pandas as pd

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{sections}
</main>
</body>
</html>
"""


def rollouts_page(
    title: str, table: pd.DataFrame, plots: dict[str, Path], picks: dict[str, list[Pick]], notes: list[str]
) -> str:
    """The whole page.

    Args:
        title: shown as heading and in the browser's tab.
        table: from `summary_table`.
        plots: title -> PNG file, from `write_plots`; the pictures are copied into the page.
        picks: method -> rollouts to show.
        notes: what was missing or broken.
    """
    sections = [_table_html(table), _plots_html(plots), _notes_html(notes), _rollouts_html(picks)]
    style = css_variables() + resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    return PAGE.format(title=escape(clean(title)), style=style, sections="\n".join(filter(None, sections)))


def _table_html(table: pd.DataFrame) -> str:
    headings, rows = display_table(table)
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "\n".join(
        f'<tr><th scope="row">{escape(clean(row[0]))}</th>'
        + "".join(f"<td>{escape(c)}</td>" for c in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f'<section>\n<h2>Summary</h2>\n<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>\n<p class='caption'>{escape(CAPTION)}</p>\n</section>"
    )


def _plots_html(plots: dict[str, Path]) -> str:
    figures = "\n".join(
        f'<img alt="{escape(title)}, one line per method" '
        f'src="data:image/png;base64,{base64.b64encode(path.read_bytes()).decode("ascii")}">'
        for title, path in plots.items()
    )
    return f'<section>\n<h2>Training</h2>\n<div class="plots">\n{figures}\n</div>\n</section>' if plots else ""


def _notes_html(notes: list[str]) -> str:
    items = "\n".join(f"<li>{escape(clean(note))}</li>" for note in notes)
    return f"<section>\n<h2>Notes</h2>\n<ul>\n{items}\n</ul>\n</section>" if notes else ""


def _rollouts_html(picks: dict[str, list[Pick]]) -> str:
    methods = "\n".join(
        f'<section class="method">\n<h3>{escape(clean(method))}</h3>\n'
        + "\n".join(rollout_html(pick) for pick in chosen)
        + "\n</section>"
        for method, chosen in picks.items()
        if chosen
    )
    if not methods:
        return ""
    return f"<section>\n<h2>Rollouts</h2>\n{legend_html()}\n{methods}\n</section>"
