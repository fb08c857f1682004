"""Which version of its contracts this code speaks, and which code this is.

`WIRE` counts the layouts of what crosses processes. A release speaks its own version and the one
before, so processes of two releases in a row work together. The rules for a change are in
docs/data-channel.md; golden bytes of each version hold them.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

# 4: readers ignore further fields and frames of kinds to come; 3 refuses both.
WIRE = 4
SPOKEN = (WIRE, WIRE - 1)  # best first
SPOKEN_TEXT = ",".join(map(str, SPOKEN))

_ROOT = Path(__file__).parents[2]
_ACTORS_CODE = (
    "deployments/control", "deployments/contract", "deployments/process", "autoscaling",
)  # fmt: skip


@cache
def code_version() -> str:
    """Digest of the sources that the control plane's actors run. Two processes with the same one
    run the same code, wherever it is installed."""
    return sources_digest(_ROOT, _ACTORS_CODE)


def sources_digest(root: Path, folders: tuple[str, ...]) -> str:
    """SHA-256 over paths and contents of the Python sources in these folders of `root`."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()
