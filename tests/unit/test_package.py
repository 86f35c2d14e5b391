"""What an installed package has to hold to: it brings all that it reads, and reads nothing above itself."""

import re

import pytest
from tests.servers import ROOT

SOURCES = sorted(ROOT.glob("plugins/redrive*/**/*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_climbs_out_of_its_package(path: object) -> None:
    text = path.read_text()  # type: ignore[attr-defined]
    assert not re.search(r"__file__\).*(parents\[|\.parent\.parent)", text)
