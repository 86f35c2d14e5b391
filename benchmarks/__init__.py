"""Comparisons and costs, run by ``make bench``. Figures are measured when it runs, never kept here."""

import os
import sys

# What is installed is compiled. In a shell that forbids compiled files each Python that a benchmark starts would
# compile SQLAlchemy or Airflow anew, and that would be measured.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
