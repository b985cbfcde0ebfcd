"""The HTML file: template, style and script of ``web/`` with the payload between them."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib import resources
from string import Template

from verl_grail.report.colours import WEIGHT_HIGH, WEIGHT_LOW, css_variables
from verl_grail.report.tokens import clean

SCRIPTS = (
    "dom.js",
    "data.js",
    "charts.js",
    "tokens.js",
    "curves.js",
    "steps.js",
    "compare.js",
    "rollouts.js",
    "main.js",
)
"""In the order in which they are put together; each is one object that the later ones use."""


def read(name: str) -> str:
    """A file of ``web/``."""
    return resources.files(__package__).joinpath("web", name).read_text(encoding="utf-8")


def run_page(title: str, subtitle: str, payload: str) -> str:
    """The whole page.

    A policy in the page forbids every request, and every script and style but those whose hashes it names: text of a
    model that got past the escaping would still not run.

    Args:
        payload: from `payload.payload`.
    """
    constants = f"const WEIGHT_LOW = {WEIGHT_LOW}, WEIGHT_HIGH = {WEIGHT_HIGH};\n"
    script = '"use strict";\n(() => {\n' + constants + "\n".join(map(read, SCRIPTS)) + "\n})();\n"
    style = css_variables() + read("page.css")
    allowed = f"script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    return Template(read("page.html")).substitute(
        policy=policy,
        title=escape(clean(title)),
        subtitle=escape(clean(subtitle)),
        style=style,
        script=script,
        payload=payload,
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
