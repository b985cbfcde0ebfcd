"""Python processes that start with the heavy libraries already imported.

A CPU run of verl is about ten Python processes, and each takes ten seconds or more to import torch, transformers and
vLLM: most of a short run. `serving` imports them once, in a server that forks a copy of itself for every process:

    with serving(log=Path("preload.log")) as python:
        subprocess.run([*python.command, "-m", "verl.trainer.main_ppo", *args, *python.overrides])

``command`` stands for ``python``; the overrides make Ray start its workers with it (``runtime_env.py_executable``), and
processes started with it spawn multiprocessing's with it (vLLM's engine core). What a process does is not changed: it
gets the caller's arguments, environment, folder, open files and limits, and imports ray, verl and this package itself
(ray reads its environment when it is imported, verl finds its plugins then). Only for runs on one machine whose
libraries are those of the server; nothing uses it unless asked to.

This file is the server, and the client that takes the place of ``python``: a script that must start in no time, so
nothing but the light part of the standard library is imported at its top.
"""

import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
import sys

MODULES: tuple[str, ...] = (
    "torch._inductor.lowering",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.utils.tensorboard",
    "tensordict",
    "transformers.modeling_utils",
    "transformers.processing_utils",
    "datasets",
    "peft",
    "hydra",
    "math_verify",
    "vllm.v1.worker.cpu_worker",
    "vllm.entrypoints.openai.api_server",
)
"""What verl's processes import, as far as it does without ray. Megatron-core is not here: few runs use it."""

LATE = ("ray", "verl", "transfer_queue")
"""Packages that each process has to import itself."""

LIMITS = ("RLIMIT_NOFILE", "RLIMIT_CORE")
MAX_FILES = 253
"""Descriptors that Linux passes in one message (SCM_MAX_FD)."""
REQUEST_S = 20.0
"""Seconds for a client to send its request."""
FORWARDED = (signal.SIGINT, signal.SIGTERM)
READY = "ready"
SOCKET = "socket"

PYTHON = "python"
"""The client as a program of its own, beside the socket: multiprocessing takes no arguments with its executable."""

WRAPPER = """#!/bin/sh
case "$*" in
*multiprocessing.resource_tracker* | *multiprocessing.forkserver*) exec {python} "$@" ;;
esac
exec {python} -I -S {script} {folder} "$@"
"""
"""The helpers of multiprocessing are small and mind who their parent is: they are started as ever."""


def program(argv: list[str]) -> list[str]:
    """What Python is to run, without its own options: those of the server hold."""
    while argv and argv[0].startswith("-") and argv[0] not in ("-m", "-c"):
        argv = argv[2:] if argv[0] in ("-X", "-W") else argv[1:]
    if not argv:
        raise SystemExit("a preloaded process needs a script, -m or -c")
    return argv


def run_client(folder: str, argv: list[str]) -> int:
    """Have the server in ``folder`` run ``python argv``, and wait for it; returns its exit status."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(os.path.join(folder, SOCKET))
    request = {
        "argv": program(argv),
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "folder": folder,
        "nice": os.nice(0),
        "umask": (mask := os.umask(0o077)),
        "limits": {name: resource.getrlimit(getattr(resource, name))[0] for name in LIMITS},
    }
    os.umask(mask)
    files = [0, 1, 2, *(fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and _passed_on(fd))]
    if len(files) > MAX_FILES:
        raise SystemExit(f"{len(files)} open files cannot be handed to a preloaded process, {MAX_FILES} can")
    body = json.dumps(request | {"files": files}).encode()
    socket.send_fds(server, [len(body).to_bytes(8, "big")], files)
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # after the request, not in the middle of it
    server.sendall(body)
    for number in FORWARDED:
        signal.signal(number, lambda n, _frame: server.send(bytes([n])))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    answer = b""
    while chunk := server.recv(16):
        answer += chunk
    if not answer:
        print("the server of preloaded processes is gone", file=sys.stderr)
        return 1
    status = int(answer)
    return status if status >= 0 else 128 - status


def _passed_on(fd: int) -> bool:
    """Whether a file is meant for the next program too: what Python opens itself is not."""
    try:
        return os.get_inheritable(fd)
    except OSError:  # the listing's own
        return False


class NeedsLatePackage(BaseException):
    """A preloaded module wanted one of `LATE`. No ``except Exception`` on the way may swallow it."""


class _Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in LATE:
            raise NeedsLatePackage(name)
        return None


def _preload(modules: list[str]) -> None:
    import gc
    import importlib

    from verl_grail import cpu

    cpu.install()  # vLLM asks for its own version when it is imported
    refuse = _Refuse()
    sys.meta_path.insert(0, refuse)
    for name in modules:
        importlib.import_module(name)
    sys.meta_path.remove(refuse)
    gc.collect()
    gc.freeze()  # the collector would write to every page that the copies share


class Server:
    """Accepts requests on a socket and forks; one thread, because the copies hold nothing but it.

    Args:
        listener: the socket, listening.
        owner: a file descriptor that is at its end when the one who started the server is gone.
    """

    def __init__(self, listener: socket.socket, owner: int) -> None:
        self.listener = listener
        self.owner = owner
        self.clients: dict[int, socket.socket] = {}  # by the process forked for them

    def serve(self) -> None:
        """Until the owner is gone; what still runs then is asked to end."""
        import select

        woken, wake = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._own = (woken, wake)
        while True:
            ready, _, _ = select.select([self.listener, self.owner, woken, *self.clients.values()], [], [])
            if self.owner in ready and not os.read(self.owner, 1):
                for pid in self.clients:
                    os.kill(pid, signal.SIGTERM)
                return
            if woken in ready:
                os.read(woken, 4096)
                self._reap()
            for pid, client in list(self.clients.items()):
                if client in ready:
                    self._heard(pid, client)
            if self.listener in ready:
                self._fork(self.listener.accept()[0])

    def _reap(self) -> None:
        while self.clients:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            client = self.clients.pop(pid, None)
            if client is not None:
                _answer(client, os.waitstatus_to_exitcode(status))

    def _heard(self, pid: int, client: socket.socket) -> None:
        """A signal to pass on; or nothing, where the client was killed: then so is what it stood for."""
        try:
            number = client.recv(1)
        except ConnectionResetError:
            number = b""
        os.kill(pid, number[0] if number else signal.SIGKILL)
        if not number:
            self.clients.pop(pid).close()
            os.waitpid(pid, 0)

    def _fork(self, client: socket.socket) -> None:
        files: list[int] = []
        try:
            client.settimeout(REQUEST_S)  # one that stops half-way must not stop the others
            header, files, _, _ = socket.recv_fds(client, 8, MAX_FILES)
            size, body = int.from_bytes(header, "big"), b""
            while len(body) < size:
                if not (chunk := client.recv(size - len(body))):
                    raise ConnectionError("the request ends in its middle")
                body += chunk
            if len(header) < 8 or len(files) < 3:
                raise ConnectionError("no request")
            client.settimeout(None)
            pid = os.fork()
        except OSError as e:  # also no memory for a copy, no answer in time
            print(f"no process for a client: {e}", file=sys.stderr, flush=True)
            _answer(client, 1)
        else:
            if pid == 0:
                self._become(json.loads(body), client, files)
            self.clients[pid] = client
        for fd in files:
            os.close(fd)

    def _become(self, request: dict, client: socket.socket, files: list[int]) -> None:
        """In the copy: be the process that was asked for; never returns."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for s in (self.listener, client, *self.clients.values()):
                s.close()
            for fd in (*self._own, self.owner):
                os.close(fd)
            high = max(*request["files"], *files) + 1
            moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, high) for fd in files]
            for fd in files:
                os.close(fd)
            for number, fd in zip(request["files"], moved, strict=True):
                os.dup2(fd, number)
                os.close(fd)
            status = _run(request)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)


def _answer(client: socket.socket, status: int) -> None:
    """Tell a client how its process ended, if it is still there."""
    with client, contextlib.suppress(OSError):
        client.send(str(status).encode(), socket.MSG_NOSIGNAL)


def _within(soft: int, hard: int) -> bool:
    return hard == resource.RLIM_INFINITY or resource.RLIM_INFINITY != soft <= hard


def _die_with_parent() -> None:
    """Ask Linux for SIGTERM when the server ends, however it does (prctl, PR_SET_PDEATHSIG)."""
    import ctypes

    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))


def _run(request: dict) -> int:
    """Take on the request's surroundings and run its program as ``__main__``; returns its exit status."""
    import atexit
    import multiprocessing.spawn
    import random
    import runpy
    import threading
    import traceback

    _die_with_parent()
    os.setsid()
    os.umask(request["umask"])
    os.nice(max(0, request["nice"] - os.nice(0)))
    for name, soft in request["limits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (soft if _within(soft, hard) else hard, hard))
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    first = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    sys.path[:] = [*first, *(p for p in sys.path if p not in first)]
    random.seed()  # the copies would all draw the same numbers
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    # what multiprocessing keeps of the process that imported it
    multiprocessing.process.ORIGINAL_DIR = request["cwd"]
    multiprocessing.current_process().authkey = os.urandom(32)
    multiprocessing.spawn.set_executable(os.path.join(request["folder"], PYTHON))
    what, *rest = request["argv"]
    status: object = 0
    try:
        if what == "-c":
            sys.argv = ["-c", *rest[1:]]
            exec(compile(rest[0], "<string>", "exec"), sys.modules["__main__"].__dict__)
        elif what == "-m":
            sys.argv = list(rest)
            sys.path.insert(0, request["cwd"])
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [what, *rest]
            sys.path.insert(0, os.path.dirname(os.path.abspath(what)))
            runpy.run_path(what, run_name="__main__")
    except SystemExit as e:
        status = e.code
    except BaseException:
        traceback.print_exc()
        status = 1
    # As at the end of Python itself: other threads first, then what was registered, then the streams.
    threading._shutdown()
    atexit._run_exitfuncs()
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return (status or 0) & 0xFF


def run_server(folder: str, modules: list[str]) -> None:
    """Import ``modules``, then listen in ``folder`` until standard input ends. Says `READY` on standard output."""
    sys.path.pop(0)  # the folder that the server was started in
    _preload(modules)
    owner = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.join(folder, SOCKET))
    listener.listen(64)
    print(READY, flush=True)
    Server(listener, owner).serve()


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        run_server(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(run_client(sys.argv[1], sys.argv[2:]))
