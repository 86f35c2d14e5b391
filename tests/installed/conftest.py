import os
from pathlib import Path

import pytest

from tests.installed.places import build
from tests.servers import ROOT


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What `make release` made (``$REDRIVE_DIST``), else what is built now."""
    given = os.environ.get("REDRIVE_DIST")
    if given:
        return {path.name: path for path in Path(given).iterdir() if path.suffix in (".whl", ".gz")}
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def wheel(made: dict[str, Path]) -> Path:
    return next(path for name, path in made.items() if name.endswith(".whl"))
