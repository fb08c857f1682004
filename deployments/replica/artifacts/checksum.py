"""The SHA-256 by which settings name a file or a folder.

For a file, the SHA-256 of its bytes. For a folder, that of a text with a line `HEX  NAME` for each
file below it, in the order of the names' bytes: what `sha256sum` prints, hashed once more.
Source: Go's `dirhash.Hash1`, which differs only in its base64.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def sha256_of(path: Path) -> str:
    """64 hexadecimal digits. Reads the whole file or folder."""
    if path.is_file():
        return _of_file(path)
    total = hashlib.sha256()
    files = [(each.relative_to(path).as_posix(), each) for each in path.rglob("*")]
    for name, file in sorted(files, key=lambda entry: os.fsencode(entry[0])):
        if file.is_file():
            total.update(f"{_of_file(file)}  {name}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def mismatch(path: Path, expected: str) -> str | None:
    """How the digest differs from `expected`; None if it does not, or nothing is expected."""
    if not expected:
        return None
    found = sha256_of(path)
    return None if found == expected else f"its SHA-256 is {found}, not {expected}"


def _of_file(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
