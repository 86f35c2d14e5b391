"""What tests start leaves nothing behind and is in nobody's way."""

import os
import signal
import subprocess
import sys
import time

from tests.servers import ROOT

START = """
import subprocess, sys, time
from tests.servers import GUARD
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
GUARD.watch(child.pid)
print(child.pid, flush=True)
time.sleep(300)
"""
TAKE = """
from tests.servers import free_port
print(*(free_port() for _ in range(300)), flush=True)
input()
"""


def python(code: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def test_a_server_dies_with_a_worker_that_is_killed() -> None:
    with python(START) as worker:
        assert worker.stdout is not None
        server = int(worker.stdout.readline())
        worker.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while _runs(server):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    told = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(told.strip()) and not told.startswith("Z")  # nobody may have asked how it ended


def test_no_port_is_given_to_two_processes() -> None:
    with python(TAKE) as one, python(TAKE) as other:
        given = [worker.stdout.readline().split() for worker in (one, other) if worker.stdout]
        assert [len(set(ports)) for ports in given] == [300, 300]
        assert not set(given[0]) & set(given[1])
        for worker in (one, other):
            worker.communicate("\n")
