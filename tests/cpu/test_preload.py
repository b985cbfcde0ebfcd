"""Preloaded processes are what ``python`` would have started: same arguments, surroundings, signals and status."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time

import pytest

from verl_grail.cpu.preload import LATE, MODULES
from verl_grail.cpu.preloaded import Python, serving


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("preload") / "log.txt", modules=("decimal", "numpy")) as python:
        yield python


PROGRAM = """
import json, os, random, resource, sys
import numpy
out = dict(argv=sys.argv, cwd=os.getcwd(), x=os.environ.get("X"), home="HOME" in os.environ, stdin=sys.stdin.read(),
           preloaded=[m in sys.modules for m in ("decimal", "ray", "verl")], main=__name__, nice=os.nice(0),
           nofile=resource.getrlimit(resource.RLIMIT_NOFILE)[0], path=sys.path[0], draws=[random.random(),
           numpy.random.random()])
print(json.dumps(out))
print("to the other stream", file=sys.stderr)
sys.exit(7)
"""


def call(python: Python, *args: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([*python.command, *args], capture_output=True, text=True, timeout=60, **options)


def test_surroundings_are_the_callers(python, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "elsewhere").mkdir()

    def lower():
        import resource

        os.nice(3)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    options = dict(cwd=tmp_path / "elsewhere", env={"X": "1"}, input="in", preexec_fn=lower)
    ours, again = (call(python, "-u", "../program.py", "a b", "--c=d", **options) for _ in range(2))
    plain = subprocess.run(
        [sys.executable, "-u", "../program.py", "a b", "--c=d"], capture_output=True, text=True, **options
    )
    got, other, want = (json.loads(p.stdout) for p in (ours, again, plain))
    assert (ours.returncode, ours.stderr) == (7, "to the other stream\n") == (plain.returncode, plain.stderr)
    draws = got.pop("draws"), other.pop("draws"), want.pop("draws")
    assert not set(draws[0]) & set(draws[1])
    want["preloaded"] = [True, False, False]
    # a script named by a relative path has its folder in the module path as Python writes it
    got["path"], want["path"] = os.path.realpath(got["path"]), os.path.realpath(want["path"])
    assert got == want


def test_modules_and_module_path(python, tmp_path):
    (tmp_path / "mine.py").write_text("import other, sys; print(other.x, sys.argv[1:])")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "other.py").write_text("x = 3")
    done = call(
        python,
        "-B",
        "-X",
        "utf8",
        "-Wignore",
        "-m",
        "mine",
        "a",
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "lib")},
    )
    assert done.stdout == "3 ['a']\n", done.stderr


def test_the_module_path_starts_with_what_the_environment_names(python, tmp_path):
    """Also where it is in the path already, behind a package of the same name."""
    (tmp_path / "program.py").write_text("import sys; print(sys.path[1])")
    for last in sys.path[-2:]:
        assert call(python, "program.py", cwd=tmp_path, env={"PYTHONPATH": last}).stdout == f"{last}\n"


def test_multiprocessing_spawns_with_it(python, tmp_path):
    """A spawned process is preloaded and talks to its parent; the pool's own helpers are as ever."""
    (tmp_path / "program.py").write_text(
        "import multiprocessing as mp, os, sys\n"
        "def work(x): return x + 1, 'decimal' in sys.modules, __name__\n"
        "def stop(): os._exit(4)\n"
        "def nap(): import time; time.sleep(60)\n"
        "if __name__ == '__main__':\n"
        "    for method in ('spawn', 'forkserver'):\n"
        "        with mp.get_context(method).Pool(1) as pool: print(method, *pool.apply(work, (1,)))\n"
        "    p = mp.get_context('spawn').Process(target=stop); p.start(); p.join(); print(p.exitcode)\n"
        "    p = mp.get_context('spawn').Process(target=nap); p.start(); p.terminate(); p.join(); print(p.exitcode)\n"
    )
    done = call(python, "program.py", cwd=tmp_path)
    assert done.stdout.split("\n")[:3] == ["spawn 2 True __mp_main__", "forkserver 2 False __mp_main__", "4"], done
    assert int(done.stdout.split("\n")[3]) in (-signal.SIGTERM, 128 + signal.SIGTERM)


@pytest.mark.parametrize(
    ("program", "status", "last"),
    [
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit('no')", 1, "no"),
        ("import sys; sys.exit(['no'])", 1, "['no']"),
        ("import sys; sys.exit(259)", 3, ""),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("import os; os._exit(5)", 5, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL, ""),
        ("import atexit; atexit.register(print, 'bye')", 0, ""),
        ("import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()", 0, ""),
    ],
)
def test_status(python, tmp_path, program, status, last):
    (tmp_path / "program.py").write_text(program)
    done = call(python, "program.py", cwd=tmp_path)
    assert done.returncode == status
    assert done.stderr.strip().split("\n")[-1] == last
    assert done.stdout == {"atexit": "bye\n", "thread": "late\n"}.get(program.split()[1].strip(",")[:6], "")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 9), (signal.SIGINT, 9), (signal.SIGKILL, -9)])
def test_signals_reach_the_process(python, tmp_path, sent, status):
    (tmp_path / "program.py").write_text(
        "import os, signal, sys, time\n"
        "for s in (signal.SIGTERM, signal.SIGINT): signal.signal(s, lambda *_: sys.exit(9))\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(60)\n"
    )
    client = subprocess.Popen([*python.command, "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    pid = int(client.stdout.readline())
    assert pid != client.pid
    client.send_signal(sent)
    assert client.wait(timeout=30) == status
    assert gone(pid)


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def test_nothing_outlives_the_owner(tmp_path):
    (tmp_path / "program.py").write_text("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    with serving(tmp_path / "log.txt", modules=("decimal",)) as python:
        client = subprocess.Popen([*python.command, "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        pid = int(client.stdout.readline())
        assert alive(pid)
    assert gone(pid)
    assert client.wait(timeout=30) == 1


def test_nothing_outlives_a_killed_server(tmp_path):
    (tmp_path / "program.py").write_text(
        "import os, time; print(os.getppid(), os.getpid(), flush=True); time.sleep(60)"
    )
    with serving(tmp_path / "log.txt", modules=("decimal",)) as python:
        client = subprocess.Popen([*python.command, "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        server, pid = map(int, client.stdout.readline().split())
        os.kill(server, signal.SIGKILL)
        assert gone(pid)
        assert client.wait(timeout=30) == 1


def test_a_client_that_dies_or_says_nothing_is_survived(tmp_path):
    """The answer to a dead client, half a request, and a folder that is gone: the next process starts all the same."""
    (tmp_path / "program.py").write_text("import os, time; print(os.getpid(), flush=True); time.sleep(0.3)")
    (tmp_path / "gone").mkdir()
    with serving(tmp_path / "log.txt", modules=("decimal",)) as python:
        folder = os.path.dirname(python.command[0])
        client = subprocess.Popen([*python.command, "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        pid = int(client.stdout.readline())
        os.kill(pid, signal.SIGSTOP)  # ends and client ends come to the server at once
        client.kill()
        os.kill(pid, signal.SIGKILL)
        with socket.socket(socket.AF_UNIX) as half:
            half.connect(os.path.join(folder, "socket"))
            socket.send_fds(half, [(100).to_bytes(8, "big")], [0, 1, 2])
        with socket.socket(socket.AF_UNIX) as empty:
            empty.connect(os.path.join(folder, "socket"))
        done = subprocess.run(
            ["sh", "-c", f"rmdir ../gone && exec {python.command[0]} ../program.py"],
            cwd=tmp_path / "gone",
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1 and "FileNotFoundError" in done.stderr
        assert call(python, "program.py", cwd=tmp_path).returncode == 0


def test_what_needs_ray_is_refused(tmp_path):
    with (
        pytest.raises(RuntimeError, match=r"(?s)did not start.*NeedsLatePackage: ray"),
        serving(tmp_path / "log.txt", modules=("ray",)),
    ):
        pass
    assert LATE[:2] == ("ray", "verl")


def test_the_list_can_be_preloaded(tmp_path):
    """With these loaded, verl's modules add only their own and ray's: nothing heavy is left."""
    (tmp_path / "program.py").write_text(
        "import sys\n"
        "before = set(sys.modules)\n"
        "import verl.trainer.ppo.v1, verl.workers.engine_workers\n"
        "import verl.workers.rollout.vllm_rollout.vllm_async_server\n"
        "for m in set(sys.modules) - before: print(m.split('.')[0])\n"
        "import verl_grail.plugin, verl.trainer.ppo.core_algos as algos\n"
        "assert 'grail' in algos.ADV_ESTIMATOR_REGISTRY\n"
    )
    with serving(tmp_path / "log.txt", MODULES) as python:
        done = call(python, "program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    left = [
        m for m in done.stdout.split() if m in ("torch", "transformers", "tensordict", "datasets", "vllm", "pandas")
    ]
    assert len(left) < 200, {m: left.count(m) for m in set(left)}


def test_overrides_survive_hydra():
    from hydra.core.override_parser.overrides_parser import OverridesParser

    python = Python(('/a b/py"thon\\', "-I", "-S", "/x/preload.py", "/tmp/s"))
    (override,) = OverridesParser.create().parse_overrides(python.overrides)
    assert override.key_or_group == "ray_kwargs.ray_init.runtime_env.py_executable"
    assert shlex.split(override.value()) == list(python.command)
