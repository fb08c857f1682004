"""Which code this process runs; after an upgrade, actors of other code are replaced by it."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

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
