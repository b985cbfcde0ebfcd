"""A rollout as HTML: every token a span coloured by its weight, whitespace marked, the answer underlined."""

from __future__ import annotations

import re
from html import escape

from verl_grail.report.colours import LEGEND_WEIGHTS, strength
from verl_grail.report.rollouts import Pick, Rollout
from verl_grail.report.table import MISSING

# Two or more spaces together are easily miscounted; a single one between words needs no mark.
_WHITESPACE = re.compile(r"\n|\t| {2,}")
_PICTURES = {
    **{code: 0x2400 + code for code in range(32) if code not in (9, 10)},
    127: 0x2421,
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),
}
METHOD_NAMES = {"grail": "GRAIL", "oar_g": "OAR-G"}
_TITLE_MARKS = str.maketrans({"\n": "↵", "\t": "⇥", " ": "␣"})


def clean(text: str) -> str:
    """Text that HTML can hold and show: control characters as their Unicode pictures, lone surrogates replaced.

    Byte-split characters reach the dumps as lone surrogates or U+FFFD, and a raw carriage return would be turned
    into a newline by the browser.
    """
    return text.translate(_PICTURES)


def text_html(text: str) -> str:
    """Escaped text with marks at whitespace. The marks are drawn by the style sheet: copied text stays exact."""
    pieces, end = [], 0
    text = clean(text)
    for match in _WHITESPACE.finditer(text):
        pieces.append(escape(text[end : match.start()]))
        kind = {"\n": "nl", "\t": "tab"}.get(match[0])
        pieces.append(f'<i class="{kind}">{match[0]}</i>' if kind else '<i class="sp"> </i>' * len(match[0]))
        end = match.end()
    return "".join(pieces) + escape(text[end:])


def token_html(token: str, weight: float | None, advantage: float | None, in_answer: bool) -> str:
    """One token as a span, its numbers in the tooltip."""
    side, alpha = strength(weight)
    names = " ".join(name for name in ("tok", side, "ans" if in_answer else "") if name)
    style = f' style="--t:{alpha:.2f}"' if side else ""
    w = MISSING if weight is None else f"{weight:.3f}"
    a = MISSING if advantage is None else f"{advantage:+.4f}"
    title = f"{clean(token).translate(_TITLE_MARKS)}\nweight {w}\nadvantage {a}"
    # A token that is one space would be an invisible patch between its neighbours.
    inner = '<i class="sp"> </i>' if token == " " else text_html(token)
    return f'<span class="{names}"{style} title="{escape(title)}">{inner}</span>'


def tokens_html(rollout: Rollout) -> str:
    """All tokens in order; the plain output where the run dumped no tokens."""
    if not rollout.tokens:
        return text_html(rollout.output)
    nothing = (None,) * len(rollout.tokens)
    start, end = rollout.answer_span or (0, 0)
    columns = zip(rollout.tokens, rollout.weights or nothing, rollout.advantages or nothing, strict=True)
    return "".join(token_html(token, w, a, start <= i < end) for i, (token, w, a) in enumerate(columns))


def rollout_html(pick: Pick) -> str:
    """One rollout as an article: why it was picked, its numbers, its prompt and its tokens."""
    rollout = pick.rollout
    verdict, mark = {True: ("correct", "good"), False: ("wrong", "bad"), None: (MISSING, "")}[rollout.correct]
    facts = [
        ("gold", escape(clean(rollout.gold)) or MISSING),
        ("verdict", f'<span class="{mark}">{verdict}</span>'),
        ("score", _number(rollout.score)),
        ("cosine", _number(rollout.cosine)),
        ("bonus", _number(rollout.bonus)),
        (METHOD_NAMES.get(rollout.weighting or "", "weights"), escape(clean(rollout.weight_outcome or ""))),
        ("GAR", escape(clean(rollout.gar_outcome or ""))),
        ("tokens", str(len(rollout.tokens) or "")),
        ("step", str(rollout.step)),
        ("uid", escape(clean(rollout.uid))),
    ]
    line = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts if value)
    # tabindex: a box that scrolls must be reachable with the keyboard.
    return (
        f'<article class="rollout">\n<h4>{escape(pick.why)}</h4>\n<dl>{line}</dl>\n'
        f'<details><summary>prompt</summary><div class="text">{text_html(rollout.prompt)}</div></details>\n'
        f'<div class="text tokens" tabindex="0" role="group" aria-label="response">{tokens_html(rollout)}</div>\n'
        "</article>"
    )


def legend_html() -> str:
    """The colour scale with its weights."""
    swatches = []
    for weight in LEGEND_WEIGHTS:
        side, alpha = strength(weight)
        sign = "≤ " if weight == LEGEND_WEIGHTS[0] else "≥ " if weight == LEGEND_WEIGHTS[-1] else ""
        swatches.append(f'<span class="swatch {side}" style="--t:{alpha:.2f}">{sign}{weight:g}</span>')
    return (
        f'<p class="legend">token weight w: {"".join(swatches)} '
        '<span class="ans">underlined</span>: the answer; ↵ newline, ⇥ tab, · one of several spaces, or a space that '
        "is a token. Point at a token for its weight and advantage.</p>"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
