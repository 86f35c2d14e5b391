"""The ``redrive`` command in a process of its own that is forked instead of started: its imports are there already.

What starting and importing costs is tested in ``tests/unit/test_cli.py`` with a real start.
"""

import importlib
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import NoReturn

from redrive.cli.app import main

#: What most commands import when they run.
for module in ("redrive.settings", "redrive.ledger.schema", "redrive.stages.pipeline"):
    importlib.import_module(module)


def run(*words: str, env: Mapping[str, str], given: bytes = b"") -> subprocess.CompletedProcess[str]:
    """Run it with this environment besides ours, and what is ``given`` on standard input."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(given)
        stdin.seek(0)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            try:
                for number, file in enumerate((stdin, stdout, stderr)):
                    os.dup2(file.fileno(), number)
                os.environ.update(env)
                _run(words)
            finally:
                os._exit(70)
        _, status = os.waitpid(pid, 0)
        said = []
        for file in (stdout, stderr):
            file.seek(0)
            said.append(file.read().decode(env.get("PYTHONIOENCODING", "utf-8")))
    return subprocess.CompletedProcess(["redrive", *words], os.waitstatus_to_exitcode(status), *said)


def _run(words: tuple[str, ...]) -> NoReturn:
    code: object = 0
    sys.argv = ["redrive", *words]
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(open(number, mode, closefd=False), *spoken, write_through=True)  # noqa: SIM115
        for number, (mode, *spoken) in enumerate(
            (("rb", "utf-8"), ("wb", encoding), ("wb", encoding, "backslashreplace"))
        )
    )
    try:
        main()
    except SystemExit as done:
        code = done.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)
