"""The process from which Spark forks its Python workers, for a Spark that lives longer than its sessions.

Spark starts one for each session and never ends it, so that a server for many runs would gather them. Without it
Spark starts each worker anew, waits ten seconds for it, and fails the task on a machine that is too busy for that.
This is PySpark's own, but ends when it has had no worker for a while. Spark keeps a worker for a minute after its
last task, and starts another process like this if it wants a worker after all.

As for :mod:`redrive.spark.worker_daemon`, what tasks need is imported before the first fork; but not the library, which
each session brings along.
"""

import os
import signal
import sys
from types import FrameType

from redrive.spark.installed_pyspark import prefer_installed

#: How often it looks whether it has a worker.
SECONDS = 120.0


def end_if_idle(_signal: int, _frame: FrameType | None) -> None:
    """End this process if it has no children."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        os._exit(0)


def main() -> None:
    """Fork a worker for each connection, until Spark closes standard input or nobody wants a worker any more."""
    prefer_installed(sys.path)
    import pyarrow.compute  # noqa: PLC0415
    import pyarrow.parquet  # noqa: F401, PLC0415
    from pyspark import daemon  # noqa: PLC0415

    signal.signal(signal.SIGALRM, end_if_idle)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, SECONDS)  # forked workers have no timer
    daemon.manager()


if __name__ == "__main__":
    main()
