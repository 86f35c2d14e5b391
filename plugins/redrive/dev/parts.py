"""The bill of materials of a release: what the wheel needs, in the versions that it was tested with.

``python -m redrive.dev.parts WHEEL REQUIREMENTS`` writes ``WHEEL.cdx.json`` (CycloneDX 1.6) beside the wheel. The same
wheel and pins give the same bytes.
"""

import hashlib
import json
import re
import sys
import uuid
import zipfile
from collections.abc import Sequence
from email.message import Message
from email.parser import Parser
from importlib import metadata
from pathlib import Path
from typing import Any

_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)


def bill(wheel: Path, pins: str) -> dict[str, Any]:
    """What CycloneDX says of ``wheel``, whose dependencies are pinned by the text of a requirements file."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        told = Parser().parsestr(archive.read(name).decode())
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    ours = _component("library", told["Name"], told["Version"], told)
    ours["hashes"] = [{"alg": "SHA-256", "content": digest}]
    parts = [_component("library", name, version, _installed(name, version)) for name, version in _pinned(pins)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # Of content, not of chance: a bill that is made again is the same one.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, f'{digest} {pins}')}",
        "version": 1,
        "metadata": {"component": ours},
        "components": parts,
        "dependencies": [{"ref": ours["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]}],
    }


def _pinned(pins: str) -> list[tuple[str, str]]:
    return sorted({(re.sub(r"[-_.]+", "-", name).lower(), version) for name, version in _PIN.findall(pins)})


def _installed(name: str, version: str) -> Any:
    """What the package says of itself; nothing where another version is installed here, or none."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return Message()
    return found.metadata if found.version == version else Message()


def _component(kind: str, name: str, version: str, told: Any) -> dict[str, Any]:
    address = f"pkg:pypi/{name}@{version}"
    component: dict[str, Any] = {"type": kind, "bom-ref": address, "name": name, "version": version, "purl": address}
    said = (told.get("License") or "").strip()
    if expression := told.get("License-Expression"):
        component["licenses"] = [{"expression": expression}]
    elif said and "\n" not in said and len(said) <= 100:  # else it is a whole text
        component["licenses"] = [{"license": {"name": said}}]
    return component


def main(arguments: Sequence[str]) -> int:
    """Write the bill of a wheel; the second argument is the file of its pins."""
    wheel, pins = Path(arguments[0]), Path(arguments[1])
    target = wheel.with_name(f"{wheel.name}.cdx.json")
    text = json.dumps(bill(wheel, pins.read_text(encoding="utf-8")), indent=1, ensure_ascii=False)
    target.write_text(f"{text}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
