"""What ``spark-submit`` is given: runs :mod:`redrive.spark.job`, where it can with PySpark as it is installed."""

import sys

from redrive.spark.installed_pyspark import prefer_installed

if __name__ == "__main__":
    prefer_installed(sys.path)
    from redrive.spark.job import main

    sys.exit(main())
