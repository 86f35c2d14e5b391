"""Why did each staged message fail? Reads staging batches, writes causes and groups: for people who run it by hand.

    python spark_jobs/classify_messages.py --manifest var/…/RUN.json --master 'local[*,4]'

The job itself is :mod:`redrive.spark.job`. Redrive submits it by a file of the library's own, with the code in a zip
beside it; ``prepare`` logs where the manifest is.
"""

import sys

from redrive.spark.job import main

if __name__ == "__main__":
    sys.exit(main())
