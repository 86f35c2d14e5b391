"""Why did each staged message fail? Reads staging batches, writes causes and groups.

    spark-submit --py-files redrive.zip classify_messages.py --manifest s3://…/manifest.json
    python spark_jobs/classify_messages.py --manifest var/…/manifest.json --master 'local[*,4]'

The job itself is :mod:`redrive.spark.job`, which is installed with the library and which Redrive submits.
"""

import sys

from redrive.spark.job import main

if __name__ == "__main__":
    sys.exit(main())
