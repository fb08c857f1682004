"""Bills of materials in CycloneDX's format: what each image's locks put into it, with digests.

Made of the locks, so no image has to be built for them. Debian's packages are not among them:
`dpkg-query --show` in an image lists those.
"""

from __future__ import annotations

import json
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from deployments.tools.supply_chain.lock_sets import IMAGES, ROOT, Locked, locked

SPECIFICATION = "1.6"
_LIST_S = 300


class CannotList(Exception):
    """What cyclonedx-py said, or that it said nothing in time."""


def write(folder: Path) -> Iterator[Path]:
    """Writes one file an image; their paths. Raises CannotList."""
    for image, locks in IMAGES.items():
        path = folder / f"{image}.cdx.json"
        path.write_text(json.dumps(bill(locked(locks), image), indent=2, sort_keys=True) + "\n")
        yield path


def bill(packages: Sequence[Locked], image: str) -> dict[str, Any]:
    """CycloneDX's document; the same for the same packages. Raises CannotList."""
    command = [_program(), "requirements", "-", "--pyproject", str(ROOT / "pyproject.toml")]
    command += ["--output-reproducible", "--sv", SPECIFICATION, "--validate"]
    lock = "".join(f"{each}\n" for each in packages)
    try:
        done = subprocess.run(
            command, input=lock, capture_output=True, text=True, timeout=_LIST_S, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise CannotList(f"cyclonedx-py did not end within {_LIST_S} s") from late
    if done.returncode:
        raise CannotList(done.stderr.strip())
    document: dict[str, Any] = json.loads(done.stdout)
    document["metadata"]["component"]["bom-ref"] = f"headrace-{image}"
    document["components"] = [_component(each, image) for each in document["components"]]
    return document


def _component(component: dict[str, Any], image: str) -> dict[str, Any]:
    """Named by its package rather than by a line; a marker stays as what it was found by."""
    written = component.pop("description").partition(": ")[2].partition(" --hash")[0].strip()
    component["bom-ref"] = component["purl"]
    _, _, marker = written.partition(";")
    if marker:
        component["properties"] = [{"name": "headrace:marker", "value": marker.strip()}]
    return component


def _program() -> str:
    return str(Path(sysconfig.get_path("scripts")) / "cyclonedx-py")
