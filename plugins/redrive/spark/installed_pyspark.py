"""Prefers PySpark as it is installed to the archive of it that Spark puts before it.

Spark starts each Python with its ``pyspark.zip`` in front of all other paths. Python keeps no compiled form of what it
imports from an archive: that took 0.6 s for each process, instead of 0.13 s.
"""

from pathlib import Path

_ARCHIVE = ("python", "lib", "pyspark.zip")


def prefer_installed(path: list[str]) -> None:
    """Take the archives of Spark's Python out of ``path`` (``sys.path``) that belong to a PySpark which is installed on
    it, and put them behind everything else. Of another Spark, such as a cluster's, they stay where they are.

    To be called before PySpark is imported.
    """
    behind = [entry for entry in path if _belongs_to_installed(entry, path)]
    path[:] = [entry for entry in path if entry not in behind] + behind


def _belongs_to_installed(entry: str, path: list[str]) -> bool:
    archive = Path(entry)
    if archive.parts[-3:] != _ARCHIVE:
        return False
    package = archive.parents[2]
    return package.name == "pyspark" and str(package.parent) in path and (package / "__init__.py").exists()
