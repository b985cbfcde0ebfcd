"""A run's folder: its settings, one JSON line per sample, and who may go on with it.

run.json                 settings, labels, problems of each benchmark
samples/BENCHMARK.jsonl  append-only; a sample is found again by problem, run and number
problems/BENCHMARK.jsonl one line per problem, written when the benchmark's samples are complete; so it is there only
                         as long as it is as new as they are
summary.json, summary.md the metrics of the benchmarks whose samples are complete
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from verl_grail.evaluation import EvaluationError

CARD, SUMMARY = "run.json", "summary.json"

_BLOCK = 1 << 16

Key = tuple[str, int, int]
"""Problem, run and number of a sample."""


@dataclass(frozen=True)
class Sample:
    """One graded response.

    Attributes:
        id: problem; ``run`` and ``sample`` count from 0.
        outcome: of the grader (`verl_grail.grading.compare.Outcome`), or ``failed``: no response was had.
        answer: what was graded; None without one.
        rule: what decided.
        tokens: of the response; None where a server does not say.
        finish: why it ended; ``length``: truncated.
        error: of a request that failed.
        response: text; of samples in memory only `short`'s.
        protocol: fingerprint of the settings that it was made with.
    """

    id: str
    run: int
    sample: int
    outcome: str
    answer: str | None
    rule: str
    tokens: int | None
    finish: str
    error: str
    response: str
    protocol: str = ""

    @property
    def key(self) -> Key:
        """What it is found by."""
        return self.id, self.run, self.sample


def fingerprint(settings: dict[str, Any]) -> str:
    """A short digest of settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:12]


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Settings that differ, as ``sampling.temperature: 0.6, now 1.0``."""
    found = []
    for name in sorted({*old, *new}):
        a, b = old.get(name), new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            found += differences(a, b, f"{prefix}{name}.")
        elif a != b:
            found.append(f"{prefix}{name}: {a}, now {b}")
    return found


def short(sample: Sample) -> Sample:
    """Without its text: the first sign that is no space, from which an empty response is known.

    The texts of a whole evaluation are gigabytes, and are on disk.
    """
    return replace(sample, response=sample.response.strip()[:1])


def read_samples(path: Path) -> Iterator[Sample]:
    """Records of a file, in order, one at a time; a last line that was not written to its end is left out.

    Raises:
        EvaluationError: another line that is no record.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield Sample(**json.loads(line))
            except (ValueError, TypeError) as e:
                raise EvaluationError(
                    f"{path}: line {number} is no record ({e}): take it out, it is sampled again"
                ) from e


class Store:
    """A run's folder, open for writing by this process alone.

    Args:
        folder: made if it does not exist.
        settings: what shapes the responses and their grades.
        benchmarks: benchmark -> digest of its problems.
        labels: what the run is called (``method``, ``base``); may change, an empty one keeps what there is.

    Raises:
        EvaluationError: the folder holds a run with other settings or problems, or another process is at it.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], benchmarks: dict[str, str], labels: dict[str, str]):
        self.folder, self.settings = folder, json.loads(json.dumps(settings))
        self.fingerprint = fingerprint(self.settings)
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = open(folder / ".lock", "w")  # noqa: SIM115 (held for the store's life)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            self._lock.close()
            raise EvaluationError(
                f"{folder} is in use by another evaluation: wait for it, or take another --out"
            ) from e
        self._files: dict[str, TextIO] = {}
        card = read_card(folder) if (folder / CARD).is_file() else {}
        known = card.get("benchmarks", {})
        if self._changed(card, benchmarks):  # and nothing was sampled
            known = {}
            for path in (folder / SUMMARY, *folder.glob("problems/*.jsonl")):
                path.unlink(missing_ok=True)
        self.benchmarks = known = {**known, **benchmarks}
        labels = {**card.get("labels", {}), **{k: v for k, v in labels.items() if v}}
        card = {"settings": self.settings, "labels": labels, "benchmarks": known, "fingerprint": self.fingerprint}
        write_json(folder / CARD, card)

    def _changed(self, card: dict[str, Any], benchmarks: dict[str, str]) -> bool:
        """Whether the folder's run is another one, without samples."""
        changed = differences(card["settings"], self.settings) if card else []
        for name, digest in benchmarks.items():
            if card.get("benchmarks", {}).get(name, digest) != digest:
                changed.append(f"the problems of {name} are others")
        if changed and any(self.folder.glob("samples/*.jsonl")):
            self.close()
            raise EvaluationError(
                f"{self.folder} holds a run with other settings ({'; '.join(changed)}): take the same ones to go on "
                "with it, or another --out"
            )
        return bool(changed)

    def lines(self, benchmark: str) -> Path:
        """File of a benchmark's problems; there if its samples are complete."""
        return self.folder / "problems" / f"{benchmark}.jsonl"

    def complete(self) -> list[str]:
        """Benchmarks whose samples are complete, as of the last report."""
        return [n for n in self.benchmarks if self.lines(n).is_file() and self.path(n).is_file()]

    def path(self, benchmark: str) -> Path:
        """File of a benchmark's samples."""
        return self.folder / "samples" / f"{benchmark}.jsonl"

    def load(self, benchmark: str) -> dict[Key, Sample]:
        """Samples so far, without their texts; of several with one key, the last.

        Raises:
            EvaluationError: a record that is none, or was made with other settings.
        """
        found: dict[Key, Sample] = {}
        for number, sample in enumerate(read_samples(self.path(benchmark)), 1):
            if sample.protocol != self.fingerprint:
                raise EvaluationError(
                    f"{self.path(benchmark)}: line {number} was made with other settings than {self.folder / CARD} "
                    "says: take the file out of the folder"
                )
            found[sample.key] = short(sample)
        return found

    def append(self, benchmark: str, sample: Sample, news: bool = True) -> Sample:
        """Write a sample, and hand it to the operating system at once; returns it as `load` does.

        Args:
            news: it may change the metrics, so that the summary and the problems' lines so far are taken away; a
                request that failed once more changes none.
        """
        if news:
            (self.folder / SUMMARY).unlink(missing_ok=True)
            self.lines(benchmark).unlink(missing_ok=True)
        if benchmark not in self._files:
            path = self.path(benchmark)
            path.parent.mkdir(exist_ok=True)
            _cut_torn_line(path)
            self._files[benchmark] = path.open("a", encoding="utf-8")
        file = self._files[benchmark]
        sample = replace(sample, protocol=self.fingerprint)
        file.write(_line(asdict(sample)))
        file.flush()
        return short(sample)

    def close(self) -> None:
        """Close the files and let others at the folder."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._lock.close()


def _cut_torn_line(path: Path) -> None:
    """A process that was killed may have left half a line, which the next one would be glued to."""
    if not path.is_file():
        return
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _BLOCK)
            file.seek(start)
            at = file.read(end - start).rfind(b"\n")
            if at >= 0:
                end = start + at + 1
                break
            end = start
        file.truncate(end)


def _line(record: dict[str, Any]) -> str:
    # a response may hold half of a surrogate pair, which is no UTF-8: JSON's own escapes carry it
    return json.dumps(record) + "\n"


def write_json(path: Path, content: Any) -> None:
    """As a whole or not at all."""
    scratch = path.with_suffix(path.suffix + ".tmp")
    scratch.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
    os.replace(scratch, path)


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """JSON lines, as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(path.suffix + ".tmp")
    with scratch.open("w", encoding="utf-8") as file:
        file.writelines(map(_line, records))
    os.replace(scratch, path)


def read_card(folder: Path) -> dict[str, Any]:
    """``run.json`` of a folder.

    Raises:
        EvaluationError: there is none, or it cannot be read.
    """
    path = folder / CARD
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
        assert {"settings", "labels", "benchmarks"} <= set(card)
    except FileNotFoundError as e:
        raise EvaluationError(f"{folder} is no folder of verl-grail eval: it has no {CARD}") from e
    except (OSError, ValueError, AssertionError) as e:
        raise EvaluationError(f"{path} cannot be read: {e}") from e
    return card
