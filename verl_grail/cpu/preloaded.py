"""Start and stop the server of `verl_grail.cpu.preload`."""

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.types import Quote, QuotedString

from verl_grail.cpu import preload
from verl_grail.cpu.overrides import cpu_env


@dataclass(frozen=True)
class Python:
    """A ``python`` whose processes start with `preload.MODULES` imported."""

    command: tuple[str, ...]
    """What to write in place of ``python``."""

    @property
    def overrides(self) -> list[str]:
        """Hydra overrides of verl's trainer: Ray's workers start the same way."""
        # the shell's quotes, for the command that Ray hands to bash, inside Hydra's
        text = QuotedString(shlex.join(self.command), Quote.double).with_quotes()
        return [f"+ray_kwargs.ray_init.runtime_env.py_executable={text}"]


@contextlib.contextmanager
def serving(
    log: Path, modules: Sequence[str] = preload.MODULES, env: Mapping[str, str] | None = None
) -> Iterator[Python]:
    """A server for the time of the context.

    Args:
        log: file for what the server prints.
        modules: what it imports. One of them that needs a package of `preload.LATE` is an error.
        env: its environment, by default this process's with `cpu_env`; libraries that read theirs at import see this
            one, whatever the later processes are given.

    Raises:
        RuntimeError: the server ended before it was ready; the message has the end of its log.
    """
    env = {**os.environ, **cpu_env()} if env is None else dict(env)
    # a folder of its own: whoever may write to the socket runs programs as this user
    with tempfile.TemporaryDirectory(prefix="verl-grail-") as folder, log.open("w") as out:
        python = Path(folder) / preload.PYTHON
        quoted = {"python": sys.executable, "script": preload.__file__, "folder": folder}
        python.write_text(preload.WRAPPER.format(**{k: shlex.quote(v) for k, v in quoted.items()}))
        python.chmod(0o700)
        server = subprocess.Popen(
            [sys.executable, "-m", preload.__name__, "--serve", folder, *modules],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=out,
            start_new_session=True,
            text=True,
        )
        assert server.stdin and server.stdout
        try:
            for line in server.stdout:
                if line.strip() == preload.READY:
                    break
                out.write(line)
            else:
                out.flush()
                raise RuntimeError(f"the server of preloaded processes did not start: {log.read_text()[-2000:]}")
            yield Python((str(python),))
        finally:
            server.stdin.close()
            try:
                server.wait(timeout=30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
            server.stdout.close()
