"""The papers' evaluation protocols as values: what is sampled, how often, and what is reported."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields, replace
from typing import Any

from verl_grail.evaluation import EvaluationError

OFF = -1
"""``top_k`` without a limit, as vLLM writes it."""


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn.

    Attributes:
        samples: responses per problem and run.
        runs: independent repetitions of the whole evaluation; each has its own seeds.
        temperature, top_p, top_k: of vLLM's sampler; ``top_k`` -1 is off.
        max_tokens: longest response; one that reaches it is truncated.
    """

    samples: int
    temperature: float
    max_tokens: int
    top_p: float = 1.0
    top_k: int = OFF
    runs: int = 1

    def __post_init__(self) -> None:
        for name in ("samples", "runs", "max_tokens"):
            if getattr(self, name) < 1:
                raise EvaluationError(f"{_option(name)} {getattr(self, name)} must be at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise EvaluationError(f"--temperature {self.temperature} must be 0 or more")
        if not 0 < self.top_p <= 1:
            raise EvaluationError(f"--top-p {self.top_p} must be above 0 and at most 1")
        if self.top_k != OFF and self.top_k < 1:
            raise EvaluationError(f"--top-k {self.top_k} must be at least 1, or -1 for no limit")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class Protocol:
    """A suite and how it is evaluated.

    Attributes:
        name: as on the command line.
        sampling: how responses are drawn.
        benchmarks: names of data sets (`verl_grail.data.sources`) -> problems that are taken (0: all of them).
        pass_at: the k of pass@k; pass@1 is the mean accuracy and always reported.
        instruction: a name of `verl_grail.data.build.INSTRUCTIONS` or a text that follows the question; empty: prompts
            are taken as the file has them.
        template: arguments of the chat template.
        unpublished: fields that the paper does not give and that are chosen here.
    """

    name: str
    sampling: Sampling
    benchmarks: dict[str, int] = field(default_factory=dict)
    pass_at: tuple[int, ...] = ()
    instruction: str = ""
    template: dict[str, Any] = field(default_factory=dict)
    unpublished: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for k in self.pass_at:
            if not 1 <= k <= self.sampling.samples:
                raise EvaluationError(
                    f"--pass-at {k}: pass@{k} needs at least {k} samples of a problem, --samples is "
                    f"{self.sampling.samples}"
                )

    def changed(self, **options: Any) -> Protocol:
        """With other options than the preset's; None keeps it. ``pass_at`` follows a lower ``samples``."""
        given = {k: v for k, v in options.items() if v is not None}
        sampling = {f.name: given.pop(f.name) for f in fields(Sampling) if f.name in given}
        chosen = replace(self.sampling, **sampling)
        if "pass_at" not in given:
            fitting = tuple(k for k in self.pass_at if k <= chosen.samples)
            given["pass_at"] = fitting or (chosen.samples,)
        return replace(self, sampling=chosen, **given)


GRAIL = Protocol(
    "grail",
    Sampling(samples=3, temperature=0.6, top_p=0.95, top_k=20, max_tokens=8192),
    {"math500": 0, "aime2024": 0, "amc2023": 0, "minerva": 0, "collegemath": 200, "olympiadbench": 200},
    pass_at=(3,),
    instruction="boxed",
    template={"enable_thinking": False},
    unpublished=("which 200 problems of CollegeMath and OlympiadBench: the first of the prepared file are taken",),
)
"""arXiv 2606.04889: three samples of a problem, pass@3 and mean accuracy, Wilcoxon over model x benchmark."""

GAR = Protocol(
    "gar",
    Sampling(samples=16, runs=10, temperature=1.0, max_tokens=8192),
    {"aime2026": 0, "hmmt_feb2025": 0, "hmmt_feb2026": 0, "imo_answerbench": 0},
    pass_at=(1, 16),
    instruction="think",
    unpublished=(
        "temperature, top_p and max_tokens: those of our recipe are taken",
        "the wording of the instruction: that of our training data is taken",
        "how a run estimates pass@1: by all of its 16 samples",
    ),
)
"""arXiv 2609.03342: pass@1 and pass@16, mean of 10 runs, paired t over the runs."""

FILES = Protocol("files", Sampling(samples=4, temperature=0.6, top_p=0.95, top_k=20, max_tokens=8192), pass_at=(4,))
"""For files of one's own: prompts as they are."""

PROTOCOLS = {p.name: p for p in (GRAIL, GAR)}


def sample_seed(seed: int, problem: str, run: int, sample: int) -> int:
    """Seed of one sample, in [0, 2**31): the same for every model, so that methods are sampled under matched seeds."""
    digest = hashlib.sha256(f"{seed}|{problem}|{run}|{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
