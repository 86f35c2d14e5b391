"""Where things are: the home, the file, and what the file or the environment names as places of the state."""

import functools
import os
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

#: Where the environment says where state is, it goes before the file, whether that has the key or not: who names a
#: ledger must not get the demo's.
PLACES: Mapping[str, str] = {"database": "REDRIVE_DATABASE_URL", "staging": "REDRIVE_STAGING_URI"}


def home(env: Mapping[str, str] = os.environ) -> Path:
    """The folder from which relative paths count, and below which ``config/redrive.yaml`` and ``var/`` are.

    ``$REDRIVE_HOME``. Else a checkout is its own home. An installed package has none: then the folder of
    ``$REDRIVE_CONFIG`` (the one above it, where that is called ``config``), else ``$AIRFLOW_HOME``, else the folder in
    which we were started.
    """
    if given := env.get("REDRIVE_HOME"):
        return Path(given).absolute()
    if found := checkout():
        return found
    if (file := Path(env.get("REDRIVE_CONFIG") or "")).is_absolute():
        return file.parent.parent if file.parent.name == "config" else file.parent
    return Path(env.get("AIRFLOW_HOME") or "").expanduser().absolute()


@functools.cache
def checkout() -> Path | None:
    """The root of the checkout that this code runs from; None where it is installed as a package."""
    plugins = Path(str(files("redrive"))).resolve().parent
    return plugins.parent if plugins.name == "plugins" and (plugins.parent / "pyproject.toml").is_file() else None


def config_path(env: Mapping[str, str] = os.environ) -> Path:
    """The file that is read: ``$REDRIVE_CONFIG``, by default ``config/redrive.yaml``, counted from home."""
    return home(env) / (env.get("REDRIVE_CONFIG") or "config/redrive.yaml")


def path_under(root: Path, place: Any) -> Any:
    """``place`` counted from ``root`` where it is a path, and as it is where it isn't: an address, or no text."""
    if not isinstance(place, str) or "://" in place or not place.strip():
        return place
    return str(root / Path(place).expanduser())


def sqlite_under(root: Path, url: Any) -> Any:
    """``url`` with its file counted from ``root`` where it is of SQLite with a relative path, else as it is."""
    match = re.fullmatch(r"(sqlite(?:\+\w+)?:///)([^/:?][^?]*)(\?.*)?", url) if isinstance(url, str) else None
    return f"{match[1]}{root / match[2]}{match[3] or ''}" if match else url
