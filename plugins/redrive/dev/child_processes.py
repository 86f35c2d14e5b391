"""Programs that a local Airflow or Spark consists of: each in a process group of its own, and gone when we are."""

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

#: So long a child may take when it is asked to stop, in seconds; then it is killed.
STOP_SECONDS = 20.0
#: Runs the command that follows it, after asking Linux for SIGTERM when we die, even by SIGKILL. As a program
#: of its own and not a ``preexec_fn``, because that may hang where other threads run.
_LEASH = """\
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(143)
os.execv(sys.argv[2], sys.argv[2:])
"""


def program(name: str) -> str:
    """The program of this very environment, whatever the PATH says."""
    return str(Path(sysconfig.get_path("scripts")) / name)


def spawn(
    command: Sequence[str], env: Mapping[str, str], out: IO[bytes] | int, *, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a child in a process group of its own, so that Ctrl-C reaches it through us and in our order.

    What it says goes to ``out``, its errors too. It is told to stop when this process dies (Linux).
    """
    leash = [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid())]
    return subprocess.Popen(  # noqa: S603  a program of this very environment
        [*leash, *command],
        cwd=folder,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


@contextmanager
def child(command: Sequence[str], env: Mapping[str, str], out: IO[bytes] | int) -> Iterator[subprocess.Popen[bytes]]:
    """A child that is gone, with its own children, when the block ends."""
    process = spawn(command, env, out)
    try:
        yield process
    finally:
        if process.poll() is None:
            signal_group(process, signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                signal_group(process, signal.SIGKILL)
                process.wait()
        if process.stdout is not None:
            process.stdout.close()


def signal_group(process: subprocess.Popen[bytes], what: signal.Signals) -> None:
    """Tell the child, and all that it started, ``what``; one that is gone is left alone."""
    try:
        os.killpg(process.pid, what)
    except ProcessLookupError:
        pass  # all of the group is gone already
