"""The process that owns a pool of grading workers: ``python -m verl_grail.grading.server WORKERS SECONDS MEMORY_MB``.

Requests come as JSON lines on stdin, replies go out as JSON lines on stdout, in the order in which they are done. It
ends when its stdin does, so it cannot outlive its caller. A process of its own, because its workers are forked from a
clean one (the caller may hold threads, locks and a GPU) that has imported sympy once; pebble kills a worker whose task
is over its deadline, which runs from the moment the worker takes the task, and starts another.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from multiprocessing import forkserver
from typing import IO

from pebble import CONSTS, ProcessPool

from verl_grail.grading import work
from verl_grail.grading.compare import Outcome

_TASKS_PER_WORKER = 5000
"""Then it is replaced: sympy's caches grow."""
CONSTS.sleep_unit = 0.02  # how often pebble looks for tasks that are over their deadline, in seconds


def outcome_of(future: Future) -> tuple[str, str]:
    """Outcome and rule of a finished task, whatever became of its worker."""
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, FutureTimeoutError | TimeoutError):
        return Outcome.TIMEOUT.value, "deadline"
    return Outcome.CRASHED.value, type(error).__name__


def serve(requests: IO[str], replies: IO[str], workers: int, seconds: float, memory_mb: int) -> None:
    """Answer requests until there are no more."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["verl_grail.grading.work", "verl_grail.grading.preload"])
    forkserver.ensure_running()  # from the main thread, since it dies with the thread that starts it
    lock = threading.Lock()

    def reply(number: int, future: Future) -> None:
        if future.cancelled():
            return
        outcome, rule = outcome_of(future)
        with lock:
            replies.write(json.dumps({"id": number, "outcome": outcome, "rule": rule}) + "\n")
            replies.flush()

    pool = ProcessPool(workers, _TASKS_PER_WORKER, work.start, (memory_mb,), context=context)
    try:
        for line in requests:
            task = json.loads(line)
            if task["pred"] is None:
                future = pool.schedule(work.read_gold, (task["golds"][0],), timeout=seconds)
            else:
                future = pool.schedule(work.work, (task["golds"], task["pred"], task["policy"]), timeout=seconds)
            future.add_done_callback(partial(reply, task["id"]))
    finally:
        pool.stop()
        pool.join()


def main() -> None:
    """Entry point."""
    workers, seconds, memory_mb = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    # what workers print must not get between the replies, and they must not read requests
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    serve(requests, replies, workers, seconds, memory_mb)


if __name__ == "__main__":
    main()
