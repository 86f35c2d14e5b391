"""``python -m redrive.spark.worker_daemon``: the process from which a Spark on this machine forks its Python workers.

PySpark's own (``pyspark.daemon``), but what tasks need is imported once, before the first fork, instead of in each
worker: they start sooner, and share its memory. Spark is told of it by ``spark.python.daemon.module``.
"""

import sys

from redrive.spark.installed_pyspark import prefer_installed

if __name__ == "__main__":
    prefer_installed(sys.path)
    from pyspark import daemon

    import redrive.classification.executor  # noqa: F401

    daemon.manager()
