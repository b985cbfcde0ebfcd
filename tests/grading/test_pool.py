"""Worker processes: deadlines, kills, memory, crashes; nothing is lost and nothing hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from verl_grail.grading.compare import Outcome
from verl_grail.grading.grade import Grader
from verl_grail.grading.policy import GradingPolicy
from verl_grail.grading.pool import GradingPool, default_workers, shared_pool

HANG = "7 + 5^{5^{5^{5^{5}}}}"
POLICY = GradingPolicy()
SECONDS = 2.0
"""Enough for an easy comparison on a busy machine."""


@pytest.fixture(scope="module")
def pool():
    p = GradingPool(workers=2, seconds=SECONDS, memory_mb=2048)
    assert p.grade(["x+1"], "1+x", POLICY).correct
    yield p
    p.close()


def workers_of(pool: GradingPool) -> set[int]:
    """Worker processes, children of the fork server."""
    server = psutil.Process(pool._server.pid)
    return {c.pid for c in server.children(recursive=True) if c.ppid() != server.pid}


def test_a_hung_worker_is_killed_and_replaced(pool):
    before = workers_of(pool)
    start = time.monotonic()
    assert pool.grade(["7"], HANG, POLICY).outcome is Outcome.TIMEOUT
    assert 0.9 * SECONDS < time.monotonic() - start < SECONDS + 30
    assert pool.grade(["x+1"], "1+x", POLICY).correct
    after = workers_of(pool)
    assert len(after) == 2 and after != before
    assert all(not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie" for pid in before - after)


def test_waiting_does_not_count_and_nothing_is_lost(pool):
    """Forty good samples behind ten hung ones on two workers wait longer than the deadline, and all are graded."""
    futures = [pool.submit(["7"], f"{HANG} + {i}", POLICY) for i in range(4)]
    futures += [pool.submit([f"x+{i}"], f"{i}+x", POLICY) for i in range(40)]
    names = Counter(f.result(timeout=60).outcome for f in futures)
    assert names == {Outcome.TIMEOUT: 4, Outcome.CORRECT: 40}


def test_threads_share_it(pool):
    def one(i):
        return pool.grade([f"x+{i}"], f"{i + i % 2}+x", POLICY).outcome

    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(one, range(200)))
    assert found == [Outcome.WRONG if i % 2 else Outcome.CORRECT for i in range(200)]


def test_a_killed_worker_costs_its_sample_alone(pool):
    future = pool.submit(["7"], HANG, POLICY)
    time.sleep(0.3)
    busy = max(map(psutil.Process, workers_of(pool)), key=lambda p: sum(p.cpu_times()[:2]))
    os.kill(busy.pid, signal.SIGKILL)
    assert future.result(timeout=30).outcome in (Outcome.CRASHED, Outcome.TIMEOUT)
    assert pool.grade(["x+1"], "1+x", POLICY).correct


def test_a_killed_server_is_replaced_and_its_tasks_sent_again(pool):
    futures = [pool.submit([f"x+{i}"], f"{i}+x", POLICY) for i in range(50)]
    pool._server.kill()
    assert {f.result(timeout=60).outcome for f in futures} == {Outcome.CORRECT}
    first = pool.submit(["7"], HANG, POLICY)
    first_server = pool._server
    first_server.kill()
    second = None
    end = time.monotonic() + 30
    while second in (None, first_server) and time.monotonic() < end:
        time.sleep(0.05)
        second = pool._server
    second.kill()  # for the second time: the task is given up
    assert first.result(timeout=60).outcome in (Outcome.CRASHED, Outcome.TIMEOUT)
    assert pool.grade(["x+1"], "1+x", POLICY).correct


def test_workers_do_not_outlive_their_server(pool):
    """Even those that cannot see it go: here stopped, in life busy with an endless computation."""
    futures = [pool.submit(["x+1"], "1+x", POLICY) for _ in range(20)]
    assert {f.result(timeout=60).outcome for f in futures} == {Outcome.CORRECT}
    workers = [psutil.Process(pid) for pid in workers_of(pool)]
    assert len(workers) == 2
    for worker in workers:
        os.kill(worker.pid, signal.SIGSTOP)
    pool._server.kill()
    gone, left = psutil.wait_procs(workers, timeout=60)
    assert len(gone) == 2 and not left
    assert pool.grade(["x+1"], "1+x", POLICY).correct


def test_memory_is_bounded():
    small = GradingPool(workers=1, seconds=30.0, memory_mb=512)
    try:
        # 2^33 bits are a gigabyte; with room for it, this runs into the deadline instead
        decision = small.grade(["x"], "x + (2^{2^{33}})^{2}", POLICY)
        assert (decision.outcome, decision.rule) == (Outcome.CRASHED, "MemoryError")
        assert small.grade(["x+1"], "1+x", POLICY).correct
    finally:
        small.close()


def test_it_ends_with_its_caller():
    code = """
    import os
    from verl_grail.grading.grade import Grader
    g = Grader(workers=1, seconds=60)
    assert g.grade(r"\\boxed{x+1}", "1+x").outcome.value == "correct"
    from verl_grail.grading.pool import shared_pool
    print(shared_pool(1, 60, 2048)._server.pid, flush=True)
    os.kill(os.getpid(), 9)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert done.returncode == -9, done.stderr
    pid = int(done.stdout)
    for _ in range(100):
        if not psutil.pid_exists(pid):
            return
        time.sleep(0.1)
    raise AssertionError("the server outlives its caller")


def test_closing():
    p = GradingPool(workers=1, seconds=60.0, memory_mb=2048)
    assert p.grade(["x+1"], "1+x", POLICY).correct
    future = p.submit(["7"], HANG, POLICY)
    time.sleep(0.2)
    p.close()
    assert future.result(timeout=10).outcome is Outcome.CRASHED
    with pytest.raises(RuntimeError, match="closed"):
        p.submit(["7"], "7", POLICY)


def test_a_server_that_cannot_be_started_again_leaves_nobody_waiting(monkeypatch):
    p = GradingPool(workers=1, seconds=60.0, memory_mb=2048)
    assert p.grade(["x+1"], "1+x", POLICY).correct
    future = p.submit(["7"], HANG, POLICY)
    time.sleep(0.2)

    def no_memory(*args, **kwargs):
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", no_memory)
    p._server.kill()
    assert future.result(timeout=30).outcome is Outcome.CRASHED
    assert p.grade(["x+1"], "1+x", POLICY).outcome is Outcome.CRASHED
    monkeypatch.undo()
    assert p.grade(["x+1"], "1+x", POLICY).correct
    p.close()


def test_threads_get_one_pool():
    with ThreadPoolExecutor(16) as threads:
        pools = list(threads.map(lambda _: shared_pool(1, 7.5, 1024), range(64)))
    assert len({id(p) for p in pools}) == 1


def test_one_pool_a_process_and_size():
    assert shared_pool(1, 3.0, 1024) is shared_pool(1, 3.0, 1024)
    assert shared_pool(1, 3.0, 1024) is not shared_pool(2, 3.0, 1024)
    assert default_workers() >= 4
    for wrong in ({"workers": 0}, {"seconds": 0}, {"memory_mb": 100}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Grader(**wrong)
