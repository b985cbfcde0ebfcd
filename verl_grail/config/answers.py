"""Settings of the answer span."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Optional

from verl_grail.config.section import ConfigError, Section

if TYPE_CHECKING:
    from verl_grail.core.answers import AnswerPolicy


@dataclass
class AnswersConfig(Section):
    """What the final answer of a response is (``algorithm.answers``), for GRAIL and OAR-G.

    Which of several candidates counts is the method's own setting (``box``). A grader that is to look at the same
    answer takes the same settings: see docs/rewards.md.
    """

    key = "algorithm.answers"

    locator: str = "boxed"
    r"""``boxed`` (``\boxed{...}``), ``answer_tag`` (``<answer>...</answer>``), ``regex``, or a function of yours as
    ``module:name`` or ``file.py:name``."""
    pattern: Optional[str] = None  # noqa: UP045
    """Regular expression of ``locator=regex``: its group ``answer``, else its first group, is the content."""
    several: str = "one"
    """``one`` candidate, or all of a list of neighbouring ones (``set``)."""
    frames: bool = False
    r"""``\fbox`` and ``\framebox`` count as boxes."""
    thinking: str = "after"
    """Where an answer may stand: ``after`` the thinking if any text follows it, ``never`` inside it, ``anywhere``."""
    think_open: str = "<think>"
    """Opening tag of the thinking."""
    think_close: str = "</think>"
    """Closing tag of the thinking."""

    def __post_init__(self) -> None:
        self.policy()

    def policy(self, which: str = "last") -> AnswerPolicy:
        """The core's policy with these settings.

        Raises:
            ConfigError: a setting is wrong, or the function cannot be loaded.
        """
        from verl_grail.core.answers import AnswerPolicy  # not with every import of verl

        try:
            return AnswerPolicy(which=which, **asdict(self))
        except ValueError as e:
            raise ConfigError(f"{self.key}.{e}") from e
