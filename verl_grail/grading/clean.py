r"""One spelling for the many ways of writing an answer: spaces, dollar signs, ``\left``, ``\dfrac``, ``\text``...

Cleaning never changes a value. It is linear in the text but for nested fonts, whose depth is bounded.
"""

from __future__ import annotations

import re
import unicodedata

LONGEST = 4096
"""Characters of an answer that are looked at; a longer one is no answer to grade."""
DEEPEST = 100
"""Nesting of brackets that is looked at."""

_UNICODE = {
    **dict.fromkeys("−‒–—﹣－", "-"),
    **{c: f"^{{{i}}}" for i, c in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    **{"½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}"},
    **{"×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "±": r"\pm "},
    **{"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "°": r"^\circ "},
    **{"∅": r"\emptyset ", "，": ",", "。": ".", "：": ":"},
}
_TRANSLATION = str.maketrans(_UNICODE)
_ROOT = re.compile(r"√\s*(?:(\d+(?:\.\d+)?|[A-Za-z])|\(([^()]*)\))")
_ROW = re.compile(r"\\\\(?:\[\s*-?[\d.]+\s*[a-z]{2}\s*\])?\s*")
_DOUBLED = re.compile(r"\\\\(?=[A-Za-z{}%$])")
_ROW_MARK = "\ue000"  # stands for the row break of matrices meanwhile: its second backslash begins no command
_THIN = re.compile(r"(?<=\d)(?:\\[,;:!> ]|~|\{,\}|\\thinspace)+(?=\d{3}(?!\d))")
_TIGHT_COMMA = re.compile(r",\\!\s*(?=\d)")
_SPACING = re.compile(r"\\(?:[,;:!> \n]|q?quad(?![A-Za-z])|thinspace(?![A-Za-z])|hspace\*?\{[^{}]*\})|~")
_DELIMITER = re.compile(r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits)(?![A-Za-z])\s*\.?")
_DOLLARS = re.compile(r"(?<!\\)\$|\\[()\[\]]")
_FONT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|textup|mathrm|mathbf|mathit|mathsf|mathtt|mathnormal|boldsymbol|bm"
    r"|mbox|emph|underline|boxed|fbox|framebox)\s*\{"
)
_OUTWARD = re.compile(r"([\]\[])([^\[\]]*,[^\[\]]*)([\]\[])")
_FRACTION = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_SHORT_FRACTION = re.compile(r"\\frac\s*(\d|\{[^{}]*\})\s*(\d|\{[^{}]*\})")
_SHORT_ROOT = re.compile(r"\\sqrt\s*(\d|[A-Za-z](?![A-Za-z]))")
_SYNONYMS = {
    r"\leq": r"\le",
    r"\geq": r"\ge",
    r"\leqslant": r"\le",
    r"\geqslant": r"\ge",
    r"\neq": r"\ne",
    r"\lbrace": r"\{",
    r"\rbrace": r"\}",
    r"\lbrack": "[",
    r"\rbrack": "]",
    r"\lparen": "(",
    r"\rparen": ")",
    r"\langle": "(",
    r"\rangle": ")",
    r"\mid": "|",
    r"\vert": "|",
    r"\lvert": "|",
    r"\rvert": "|",
    r"\varnothing": r"\emptyset",
    r"\degree": r"^\circ",
    r"\tfrac": r"\frac",
    r"\land": r"\wedge",
    r"\varphi": r"\phi",
    r"\varepsilon": r"\epsilon",
    r"\vartheta": r"\theta",
    r"\arctg": r"\arctan",
    r"\tg": r"\tan",
    r"\ctg": r"\cot",
    r"\lg": r"\log_{10}",
}
_CHOOSE = re.compile(r"\{\s*([^{}]{1,60}?)\s*\\choose\s*([^{}]{1,60}?)\s*\}")
_POWER_OF = re.compile(r"\^\s*\(([^()]{1,60})\)")
_PRIME = re.compile(r"\^\s*(?:\{\s*(?:\\prime\s*){1,3}\}|\\prime(?![A-Za-z]))")
_PLAIN_PI = re.compile(r"(?<![A-Za-z\\{])pi(?![A-Za-z])")
_WORD = re.compile(r"\\[A-Za-z]+")
_SPACES = re.compile(r"\s+")


def printable(text: str) -> str:
    """Without control, private and zero-width characters; line breaks and tabs become spaces."""
    if text.isascii() and text.isprintable():
        return text
    kept = (" " if c in "\n\t\r\f\v" else c for c in text)
    hidden = ("Cc", "Cf", "Cs", "Co", "Cn")
    return "".join(c for c in kept if c == _ROW_MARK or unicodedata.category(c) not in hidden)


def depth(text: str) -> int:
    """Deepest nesting of brackets of any kind."""
    level = deepest = 0
    for c in text:
        if c in "([{":
            level += 1
            deepest = max(deepest, level)
        elif c in ")]}":
            level -= 1
    return deepest


def closing(text: str, start: int) -> int | None:
    """Index of the brace that closes the one at ``start``."""
    level, i = 0, start
    while i < len(text):
        c = text[i]
        if c == "\\":
            i += 2
            continue
        level += (c == "{") - (c == "}")
        if level == 0:
            return i
        i += 1
    return None


def without_fonts(text: str) -> str:
    r"""``\text{...}``, ``\mathbf{...}``, ``\boxed{...}`` and their like replaced by what they hold."""
    for _ in range(DEEPEST):
        match = _FONT.search(text)
        if match is None:
            break
        end = closing(text, match.end() - 1)
        inner = text[match.end() : end]
        rest = "" if end is None else text[end + 1 :]
        text = f"{text[: match.start()]} {inner} {rest}" if inner.strip() else f"{text[: match.start()]} {rest}"
    return text


def spelled(text: str) -> str:
    """One spelling of symbols, spaces and fractions; fonts and texts are kept, since a unit may stand in one."""
    text = text.replace(_ROW_MARK, "")
    if "\\begin" not in text:  # no rows to break: a backslash too many, as in doubly escaped data
        text = _DOUBLED.sub(r"\\", text)
    text = _ROW.sub(_ROW_MARK, text)
    text = _ROOT.sub(lambda m: f"\\sqrt{{{m.group(1) or m.group(2)}}}", text.translate(_TRANSLATION))
    text = printable(unicodedata.normalize("NFKC", text))
    text = _THIN.sub("", _TIGHT_COMMA.sub(",", text))
    text = _DOLLARS.sub(" ", text)
    text = _DELIMITER.sub(" ", text)
    text = _SPACING.sub(" ", text)
    text = _FRACTION.sub(r"\\frac", text)
    text = _WORD.sub(lambda m: _SYNONYMS.get(m.group(), m.group()), text)
    text = _SHORT_FRACTION.sub(lambda m: rf"\frac{{{m.group(1).strip('{}')}}}{{{m.group(2).strip('{}')}}}", text)
    text = _SHORT_ROOT.sub(r"\\sqrt{\1}", text)
    text = _CHOOSE.sub(r"\\binom{\1}{\2}", text)
    text = _POWER_OF.sub(r"^{\1}", text.replace("**", "^"))
    text = _PRIME.sub(lambda m: "'" * m.group().count("prime"), text)
    text = _PLAIN_PI.sub(r"\\pi ", text).replace(_ROW_MARK, "\\\\")
    return _SPACES.sub(" ", text).strip()


def stripped(text: str) -> str:
    """Without punctuation at the end, an equals sign at the start, and braces around all of it."""
    while True:
        before = text
        text = text.strip().rstrip("\\" if text.strip().endswith("\\") else ".,;:").strip()
        text = text.removeprefix("=").strip()
        if text.startswith("{") and closing(text, 0) == len(text) - 1:
            text = text[1:-1]
        if text == before:
            return text


def inward(text: str) -> str:
    """Intervals with brackets turned outwards, ``]0, 1]``, spelled with round ones; others as they are."""
    match = _OUTWARD.fullmatch(text)
    if match is None or (match[1], match[3]) == ("[", "]"):
        return text
    return f"{'(' if match[1] == ']' else '['}{match[2]}{')' if match[3] == '[' else ']'}"


def squeezed(text: str) -> str:
    """For comparing as text: no spaces, except between words and numbers that would run together."""
    return re.sub(r"(?<![\w}])\s+|\s+(?![\w\\])", "", text)
