"""What a worker process does. Imported once by the process that workers are forked from, so that a new one is cheap."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from functools import partial

from verl_grail.grading.compare import Decision, Outcome, readable
from verl_grail.grading.expressions import compare_expressions, read
from verl_grail.grading.grade import decide_any
from verl_grail.grading.policy import GradingPolicy

_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


_fork_server = 0
"""Process that workers are forked from; set in it, so they know whom they must not outlive."""


def die_with_parent() -> None:
    """The kernel kills this process when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)


def become_fork_server() -> None:
    """Die with the grading server, and let workers forked from here know this process.

    multiprocessing's fork server ends when nobody holds its pipe any more, but a worker holds it too: one that hangs
    would keep both alive for ever.
    """
    global _fork_server
    _fork_server = os.getpid()
    die_with_parent()


def start(memory_mb: int) -> None:
    """Bound this worker's memory, and let the pool's SIGTERM end it whatever it is doing."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    if os.getppid() != _fork_server:  # it ended before the line above, which then came too late
        os._exit(1)
    limit = memory_mb << 20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def read_gold(gold: str) -> tuple[str, str]:
    """Whether a gold can be graded against, as an outcome: correct, or unparseable_gold."""
    verdict = readable(gold, lambda text: read(text) is not None)
    return (Outcome.CORRECT if verdict else Outcome.UNPARSEABLE_GOLD).value, "gold"


def work(golds: list[str], pred: str, policy: dict) -> tuple[str, str]:
    """Outcome and rule of one answer; may take for ever.

    Raises:
        MemoryError: the worker's memory is used up.
    """
    chosen = GradingPolicy(**policy)
    leaf = partial(compare_expressions, tolerance=chosen.decimal_tolerance)
    try:
        decision = decide_any(golds, pred, chosen, leaf)
    except MemoryError:
        raise
    except Exception as e:  # sympy on what a model wrote: any error of its means that it could not read it
        decision = Decision(Outcome.UNPARSEABLE_PRED, type(e).__name__)
    assert decision.outcome is not None
    return decision.outcome.value, decision.rule
