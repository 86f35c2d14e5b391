"""One local Spark session for all tests of this folder."""

import logging
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from redrive.spark.job import local_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_session("local[2]")
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
    # It says goodbye when Python ends, and the streams of the tests are closed by then.
    logging.getLogger("py4j").setLevel(logging.WARNING)
