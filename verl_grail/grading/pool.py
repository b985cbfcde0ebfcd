"""The caller's side of the grading workers: thread-safe, started on first use, restarted if it dies."""

from __future__ import annotations

import atexit
import json
import logging
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict, dataclass, field
from typing import Any

from verl_grail.grading.compare import Decision, Outcome
from verl_grail.grading.policy import GradingPolicy

logger = logging.getLogger(__name__)

_ATTEMPTS = 2
_SLACK_S = 60.0
"""A server that answers nothing for this long beyond a deadline, with tasks at hand, is taken for dead."""


@dataclass
class _Task:
    request: dict[str, Any]
    future: Future[Decision] = field(default_factory=Future)
    attempts: int = 0


class GradingPool:
    """Worker processes that compare answers by math-verify.

    Args:
        workers: processes; more tasks than that wait for their turn, which does not count as work.
        seconds: deadline of one task from the moment a worker takes it; then the worker is killed and replaced.
        memory_mb: address space of one worker.
    """

    def __init__(self, workers: int, seconds: float, memory_mb: int):
        self.workers, self.seconds, self.memory_mb = workers, seconds, memory_mb
        self._lock = threading.RLock()
        self._tasks: dict[int, _Task] = {}
        self._next = 0
        self._server: subprocess.Popen[str] | None = None
        self._heard = time.monotonic()
        self._closed = False

    def submit(self, golds: list[str], pred: str | None, policy: GradingPolicy) -> Future[Decision]:
        """Queue one comparison, or, without a prediction, the question whether the gold can be read.

        The future never raises.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the grading pool is closed")
            self._next += 1
            request = {"id": self._next, "golds": golds, "pred": pred, "policy": asdict(policy)}
            task = self._tasks[self._next] = _Task(request)
            if len(self._tasks) == 1:
                self._heard = time.monotonic()
            try:
                self._send(task)
            except OSError:
                logger.exception("the grading server cannot be started")
                self._give_up([self._next])
            return task.future

    def grade(self, golds: list[str], pred: str | None, policy: GradingPolicy) -> Decision:
        """`submit`, and wait."""
        future = self.submit(golds, pred, policy)
        while True:
            try:
                return future.result(timeout=5.0)
            except FutureTimeoutError:
                self._check_alive()

    def close(self) -> None:
        """End the server and its workers; whatever is at hand counts as crashed."""
        with self._lock:
            self._closed = True
            server, self._server = self._server, None
            if server is not None and server.stdin is not None:
                server.stdin.close()
        if server is not None:
            try:
                server.wait(timeout=10)
            except subprocess.TimeoutExpired:
                server.kill()
        self._give_up(list(self._tasks))

    def _send(self, task: _Task) -> None:
        task.attempts += 1
        server = self._running()
        assert server.stdin is not None
        try:
            server.stdin.write(json.dumps(task.request) + "\n")
            server.stdin.flush()
        except OSError:  # it died: its reader sends what is at hand to the next one
            logger.warning("the grading server does not take requests", exc_info=True)

    def _running(self) -> subprocess.Popen[str]:
        if self._server is None:
            command = [sys.executable, "-m", "verl_grail.grading.server"]
            command += [str(self.workers), str(self.seconds), str(self.memory_mb)]
            # no GPU, and the caller's folder is not searched for modules
            env = {**os.environ, "PYTHONSAFEPATH": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
            self._server = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=env
            )
            threading.Thread(target=self._read, args=(self._server,), name="grading", daemon=True).start()
        return self._server

    def _read(self, server: subprocess.Popen[str]) -> None:
        try:
            self._read_replies(server)
        except Exception:  # whatever it is, nobody may wait for replies that no thread reads
            logger.exception("the grading server's replies cannot be read")
            server.kill()
        code = server.wait()
        with self._lock:
            if self._closed or self._server is not server:
                return
            self._server = None
            self._send_again(code)

    def _read_replies(self, server: subprocess.Popen[str]) -> None:
        assert server.stdout is not None
        for line in server.stdout:
            reply = json.loads(line)
            decision = Decision(Outcome(reply["outcome"]), reply["rule"])
            with self._lock:
                self._heard = time.monotonic()
                task = self._tasks.pop(reply["id"], None)
            if task is not None:
                task.future.set_result(decision)

    def _send_again(self, code: int) -> None:
        again = [n for n, t in self._tasks.items() if t.attempts < _ATTEMPTS]
        logger.warning("the grading server ended with status %s; %d tasks are sent again", code, len(again))
        self._give_up([n for n in self._tasks if n not in again])
        try:
            for number in again:
                self._send(self._tasks[number])
        except OSError:  # no process or memory for a new server
            logger.exception("the grading server cannot be started again")
            self._give_up(list(self._tasks))

    def _check_alive(self) -> None:
        with self._lock:
            silent = time.monotonic() - self._heard
            if self._server is not None and self._tasks and silent > self.seconds + _SLACK_S:
                logger.warning("the grading server has been silent for %.0f s and is killed", silent)
                self._heard = time.monotonic()
                self._server.kill()

    def _give_up(self, numbers: list[int]) -> None:
        for number in numbers:
            task = self._tasks.pop(number, None)
            if task is not None:
                task.future.set_result(Decision(Outcome.CRASHED, "server"))


_pools: dict[tuple[int, int, float, int], GradingPool] = {}
_pools_lock = threading.Lock()


def shared_pool(workers: int, seconds: float, memory_mb: int) -> GradingPool:
    """This process's pool of these dimensions; a forked child gets one of its own."""
    key = (os.getpid(), workers, seconds, memory_mb)
    with _pools_lock:
        if key not in _pools:
            _pools[key] = GradingPool(workers, seconds, memory_mb)
            atexit.register(_pools[key].close)
        return _pools[key]


def default_workers() -> int:
    """Workers of one calling process: verl runs eight reward workers a node, and each has its own.

    Four at least, even on fewer cores: some that hang must not keep the others waiting.
    """
    return max(4, (os.cpu_count() or 4) // 8)
