r"""Which part of a text is the final answer: locators, and the policy that chooses among what they find.

One policy serves the verdict (strings) and the token spans (bytes of the generated ids), so that the answer that is
graded is the answer whose tokens GRAIL looks at.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import regex

from verl_grail.core.boxes import BLANK, Match, find_boxes

logger = logging.getLogger(__name__)

LOCATORS = ("boxed", "answer_tag", "regex")
_PATTERN_SECONDS = 1.0
# what may stand between the boxes of one list: "\boxed{3}, $\boxed{5}$ and $x_2 = \boxed{7}$"
_CONNECTOR = re.compile(
    r"(?:[\s,;&$~]|\\[,;:!()\[\] ]|\\q?quad|\\\\|\b(?:and|or)\b|\\text\{\s*(?:and|or)\s*\}|[A-Za-z](?:_\{?\w\}?)?\s*=)*"
)
_LONGEST_CONNECTOR = 60


@dataclass(frozen=True)
class AnswerPolicy:
    r"""How the final answer is found.

    Attributes:
        locator: ``boxed``, ``answer_tag`` (``<answer>...</answer>``), ``regex``, or a function as ``module:name`` or
            ``path/to/file.py:name`` that takes the text and returns ``(start, end)`` or ``(start, end, content_start,
            content_end)`` in characters, a list of these, or None.
        pattern: regular expression of the ``regex`` locator; its content is the group ``answer``, else the first
            group, else the whole match.
        which: ``last`` or ``first`` candidate.
        several: ``one`` candidate, or all of a list (``set``): neighbours of the chosen candidate that only commas,
            "and", "or", dollar signs or ``x =`` separate.
        frames: ``\fbox`` and ``\framebox`` count as boxes.
        thinking: where an answer may stand relative to the thinking. ``after``: after ``</think>`` if any text follows
            it, else anywhere; ``never``: never inside the thinking, closed or not; ``anywhere``.
        think_open, think_close: the tags.
    """

    locator: str = "boxed"
    pattern: str | None = None
    which: str = "last"
    several: str = "one"
    frames: bool = False
    thinking: str = "after"
    think_open: str = "<think>"
    think_close: str = "</think>"

    def __post_init__(self) -> None:
        for name, allowed in (
            ("which", ("last", "first")),
            ("several", ("one", "set")),
            ("thinking", ("after", "never", "anywhere")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of: {', '.join(allowed)}")
        if (self.locator == "regex") != (self.pattern is not None):
            raise ValueError("pattern goes with locator=regex: set both, or neither")
        if self.frames and self.locator != "boxed":
            raise ValueError(f"frames has no effect on locator={self.locator}: it is about boxes")
        if not self.think_close or not self.think_open:
            raise ValueError("think_open and think_close must not be empty")
        self.find  # noqa: B018 (an unknown function or a broken pattern fails here, not on the first response)

    @property
    def find(self) -> Callable[[str], list[Match]]:
        """The locator: text to candidates, in order."""
        return _locator(self.locator, self.pattern, self.frames)


@dataclass(frozen=True)
class Answer:
    """A final answer in offsets of its text: ``[start, end)`` all of it, ``contents`` the range of each element."""

    start: int
    end: int
    contents: tuple[tuple[int, int], ...]

    def text(self, source: str) -> str:
        """The contents; elements of a list are joined by commas."""
        return ", ".join(source[a:b].strip(BLANK) for a, b in self.contents)


def find_answer(text: str, policy: AnswerPolicy, permitted: Callable[[Match], bool] = lambda _: True) -> Answer | None:
    """The final answer of a response, or None.

    Args:
        permitted: says whether a candidate may be an answer at all (token spans pass over what the policy did not
            generate).
    """
    low, high = _region(text, policy)
    found = [m for m in policy.find(text) if low <= m.start and m.end <= high and permitted(m)]
    if not found:
        return None
    chosen = len(found) - 1 if policy.which == "last" else 0
    first = last = chosen
    if policy.several == "set":
        while first > 0 and _same_list(text, found[first - 1], found[first]):
            first -= 1
        while last + 1 < len(found) and _same_list(text, found[last], found[last + 1]):
            last += 1
    run = found[first : last + 1]
    return Answer(run[0].start, run[-1].end, tuple((m.content_start, m.content_end) for m in run))


def extract_answer(text: str, policy: AnswerPolicy | None = None) -> str | None:
    """Content of the final answer, stripped; None without one."""
    answer = find_answer(text, policy or AnswerPolicy())
    return None if answer is None else answer.text(text)


def _region(text: str, policy: AnswerPolicy) -> tuple[int, int]:
    """Where an answer may stand, in view of the thinking."""
    if policy.thinking == "anywhere":
        return 0, len(text)
    closed = text.rfind(policy.think_close)
    after = closed + len(policy.think_close) if closed >= 0 else 0
    if policy.thinking == "after":
        return (after if text[after:].strip(BLANK) else 0), len(text)
    reopened = text.find(policy.think_open, after)
    return after, reopened if reopened >= 0 else len(text)


def _same_list(text: str, left: Match, right: Match) -> bool:
    between = text[left.end : right.start]
    return len(between) <= _LONGEST_CONNECTOR and _CONNECTOR.fullmatch(between) is not None


@lru_cache(maxsize=64)
def _locator(locator: str, pattern: str | None, frames: bool) -> Callable[[str], list[Match]]:
    if locator == "boxed":
        return lambda text: find_boxes(text, frames)
    if locator == "answer_tag":
        return _answer_tags
    if locator == "regex":
        try:
            compiled = regex.compile(str(pattern))
        except regex.error as e:
            raise ValueError(f"pattern={pattern!r} is no regular expression: {e}") from e
        return lambda text: _by_pattern(text, compiled)
    function = load_function(locator)
    return lambda text: _by_function(text, function, locator)


def _answer_tags(text: str, opening: str = "<answer>", closing: str = "</answer>") -> list[Match]:
    """Each closing tag with the nearest opening tag before it; an empty pair is none."""
    found: list[Match] = []
    cursor = 0
    while (end := text.find(closing, cursor)) >= 0:
        start = text.rfind(opening, cursor, end)
        content = start + len(opening)
        if start >= 0 and text[content:end].strip(BLANK):
            found.append(Match(start, content, end, end + len(closing)))
        cursor = end + len(closing)
    return found


def _by_pattern(text: str, pattern: regex.Pattern) -> list[Match]:
    found: list[Match] = []
    group = "answer" if "answer" in pattern.groupindex else 1 if pattern.groups else 0
    try:
        for m in pattern.finditer(text, timeout=_PATTERN_SECONDS):
            if m.start(group) >= 0 and m.group(group).strip(BLANK):
                found.append(Match(m.start(), m.start(group), m.end(group), m.end()))
    except TimeoutError:
        logger.warning("the answer pattern %r took longer than %s s: no answer", pattern.pattern, _PATTERN_SECONDS)
        return []
    return found


def _by_function(text: str, function: Callable[[str], Any], name: str) -> list[Match]:
    try:
        result = function(text)
        if result is None:
            return []
        result = list(result)
        ranges: Sequence = [result] if result and isinstance(result[0], int) else result
        return [_checked(r, len(text)) for r in ranges]
    except Exception:  # the user's code: whatever it raises costs one sample its answer
        logger.warning("the answer locator %s failed: no answer", name, exc_info=True)
        return []


def _checked(found: Sequence[int], length: int) -> Match:
    start, end, *content = found
    content_start, content_end = content or (start, end)
    if not 0 <= start <= content_start < content_end <= end <= length:
        raise ValueError(f"{tuple(found)} is no answer range of a text of {length} characters")
    return Match(start, content_start, content_end, end)


def load_function(path: str, setting: str = "locator", names: Sequence[str] = LOCATORS) -> Callable[..., Any]:
    """A function given as ``module:name`` or ``file.py:name``.

    Args:
        setting: its name, for messages.
        names: what the setting takes besides a function.

    Raises:
        ValueError: it cannot be found; the message names the setting and the path.
    """
    where, _, name = path.rpartition(":")
    if not where or not name.isidentifier():
        either = f"one of {', '.join(names)}, and no function" if names else "a function"
        raise ValueError(f"{setting}={path!r} is not {either} as module:name")
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(where).stem, where)
            if spec is None or spec.loader is None:
                raise ImportError(f"no module at {where}")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
        return getattr(module, name)
    except (ImportError, OSError, AttributeError) as e:
        raise ValueError(f"{setting}={path!r} cannot be loaded: {e}") from e
