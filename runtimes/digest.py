"""The SHA-256 of a model's files, cached so that a start need not read them again.

Each file is read once. Its hash is stored in the cache folder under the file's path, size and
modification time in nanoseconds; a changed file is read again. A lost or damaged cache entry costs
one read. Whoever can write the cache folder can replace staged models anyway, so the cache adds no
risk. Names enter the digest relative to the model's folder, so a moved model keeps its identity.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path


def digest_of(files: Sequence[Path], base: Path, cache_dir: Path | None = None) -> str:
    """64 hexadecimal digits over the files' names (relative to `base`) and contents, in order."""
    total = hashlib.sha256()
    for file in files:
        name = file.relative_to(base).as_posix()
        total.update(f"{name}\0{_remembered(file, cache_dir)}\n".encode())
    return total.hexdigest()


def _remembered(file: Path, cache_dir: Path | None) -> str:
    if cache_dir is None:
        return sha256_of_file(file)
    place = hashlib.sha256(os.fsencode(file)).hexdigest()[:32]
    memo = cache_dir / "digests" / f"{place}.json"
    status = file.stat()
    stamp = [str(file), status.st_size, status.st_mtime_ns]
    known = _read(memo)
    if known is not None and known[0] == stamp:
        return known[1]
    fresh = sha256_of_file(file)
    with contextlib.suppress(OSError):  # a memo that cannot be kept costs a read next time
        _write(memo, (stamp, fresh))
    return fresh


def sha256_of_file(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _read(memo: Path) -> tuple[list[object], str] | None:
    try:
        stamp, digest = json.loads(memo.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return None
    return (stamp, digest) if isinstance(digest, str) and len(digest) == 64 else None


def _write(memo: Path, entry: tuple[list[object], str]) -> None:
    memo.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=memo.parent, delete=False, encoding="utf-8") as file:
        json.dump(entry, file)
    os.replace(file.name, memo)  # atomic: a reader sees the old memo or the new one
