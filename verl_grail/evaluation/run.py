"""The loop: what is missing is sampled, graded and written; the texts are not kept in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from verl_grail.evaluation import EvaluationError
from verl_grail.evaluation.engines import FAILED, Completion, Engine, Request
from verl_grail.evaluation.problems import Benchmark
from verl_grail.evaluation.protocol import Sampling, sample_seed
from verl_grail.evaluation.store import Key, Sample, Store
from verl_grail.grading.grade import Grader
from verl_grail.grading.pool import default_workers

FAILURES_IN_ROW = 32
"""Then it is not the request: the evaluation stops, and can be gone on with. Failures that are the request's own
(`Completion.own`) and requests that had failed before say nothing of the kind: they neither count nor end the row."""


@dataclass
class Tally:
    """What a run has come to so far, by benchmark."""

    wanted: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    correct: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    tokens: int = 0


Watch = Callable[[str, Sample, Tally], None]


def missing(
    benchmarks: Sequence[Benchmark], have: dict[str, dict[Key, Sample]], sampling: Sampling, seed: int
) -> Iterator[Request]:
    """Requests for what is not there; a request that failed is made again. Samples of a problem follow each other."""
    for benchmark in benchmarks:
        there = {k for k, s in have[benchmark.name].items() if s.outcome != FAILED}
        for run in range(sampling.runs):
            for problem in benchmark.problems:
                for sample in range(sampling.samples):
                    if (problem.id, run, sample) not in there:
                        yield Request(
                            benchmark.name,
                            problem.id,
                            run,
                            sample,
                            problem.messages,
                            sample_seed(seed, problem.id, run, sample),
                        )


def graded(completion: Completion, gold: object, grader: Grader) -> Sample:
    """The record of a completion. A truncated response is graded like any other, as in training."""
    request = completion.request
    if completion.finish == FAILED:
        outcome, answer, rule = FAILED, None, ""
    else:
        verdict = grader.grade(completion.text, gold)
        outcome, answer, rule = verdict.outcome.value, verdict.answer, verdict.rule
    return Sample(
        id=request.problem,
        run=request.run,
        sample=request.sample,
        outcome=outcome,
        answer=answer,
        rule=rule,
        tokens=completion.tokens,
        finish=completion.finish,
        error=completion.error,
        response=completion.text,
    )


def evaluate(
    benchmarks: Sequence[Benchmark],
    sampling: Sampling,
    seed: int,
    engine: Callable[[], Engine],
    grader: Grader,
    store: Store,
    watch: Watch | None = None,
) -> dict[str, dict[Key, Sample]]:
    """Sample what the store does not hold, and return everything, without the texts (`store.short`).

    Args:
        engine: makes it; called only if something is missing, and the engine is closed at the end.
        watch: called with each new sample, in the calling thread.

    Raises:
        EvaluationError: the engine cannot be used, or failed many times in a row; what was sampled is kept, and the
            summary so far too if nothing but repeated failures came in.
    """
    have = {b.name: store.load(b.name) for b in benchmarks}
    golds = {b.name: {p.id: p.gold for p in b.problems} for b in benchmarks}
    tally = Tally(Counter({b.name: len(b.problems) * sampling.samples * sampling.runs for b in benchmarks}))
    requests = list(missing(benchmarks, have, sampling, seed))
    for name, samples in have.items():
        kept = [s for s in samples.values() if s.outcome != FAILED and s.id in golds[name]]
        tally.done[name], tally.correct[name] = len(kept), sum(s.outcome == "correct" for s in kept)
    if not requests:
        return have
    before = {(name, key) for name, samples in have.items() for key, s in samples.items() if s.outcome == FAILED}
    running = engine()
    try:
        for name, sample in _graded(running.generate(requests, sampling), golds, grader, before):
            news = sample.outcome != FAILED or (name, sample.key) not in before
            sample = have[name][sample.key] = store.append(name, sample, news)
            tally.done[name] += sample.outcome != FAILED
            tally.failed[name] += sample.outcome == FAILED
            tally.correct[name] += sample.outcome == "correct"
            tally.tokens += sample.tokens or 0
            if watch is not None:
                watch(name, sample, tally)
    finally:
        running.close()
    return have


def _graded(
    completions: Iterable[Completion],
    golds: dict[str, dict[str, object]],
    grader: Grader,
    before: Collection[tuple[str, Key]],
) -> Iterator[tuple[str, Sample]]:
    """Grade in threads while the engine goes on: a comparison may take seconds.

    Args:
        before: benchmark and key of requests that had failed before.

    Raises:
        EvaluationError: too many failures in a row, once those at hand are out.
    """
    workers = 2 * (grader.workers or default_workers())
    grading: dict[Future[Sample], str] = {}
    in_row, last = 0, ""
    with ThreadPoolExecutor(workers, thread_name_prefix="grade") as pool:
        for completion in completions:
            request = completion.request
            key = request.benchmark, (request.problem, request.run, request.sample)
            if completion.finish != FAILED:
                in_row = 0
            elif not completion.own and key not in before:
                in_row, last = in_row + 1, completion.error
            future = pool.submit(graded, completion, golds[request.benchmark][request.problem], grader)
            grading[future] = request.benchmark
            finished = {f for f in grading if f.done()}
            if len(grading) >= 8 * workers:
                finished |= wait(grading, return_when=FIRST_COMPLETED).done
            for done in finished:
                yield grading.pop(done), done.result()
            if in_row >= FAILURES_IN_ROW:
                break
        for done in wait(grading).done:
            yield grading.pop(done), done.result()
    if in_row >= FAILURES_IN_ROW:
        raise EvaluationError(
            f"{in_row} requests failed one after the other, the last with: {last}. What was sampled is kept: mend the "
            "cause and start the same command again"
        )
