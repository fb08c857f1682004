"""How is a model converted once a host, however many replicas start at the same time?

`staged` gives the folder that holds the result of a build, keyed by everything the result depends
on. The first caller builds under a file lock, in a folder of its own, writes a manifest, flushes
and renames; whoever waited finds it there. A build that died leaves a folder that the next one
removes; an entry whose files are missing or of another size is built again.

Sizes are checked, contents are not: the cache folder belongs to the user of the service, and is as
trusted as the installed code. Old entries are not evicted.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from runtimes.errors import LoadError

MANIFEST = "manifest.json"


def staged(cache_dir: Path, parts: Sequence[str], build: Callable[[Path], None]) -> Path:
    """The folder that `build(folder)` filled, now or earlier, for exactly these `parts`.

    Blocks while another process builds the same. What `build` raises comes through, and nothing
    stays behind. Files that appear in the folder later are no part of the entry's check.
    """
    entry = cache_dir / "staged" / _key(parts)
    if _whole(entry):
        return entry
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LoadError(f"the cache folder {cache_dir} cannot be written: {error}") from error
    with exclusive(entry):
        if not _whole(entry):
            _rebuild(entry, parts, build)
    return entry


@contextlib.contextmanager
def exclusive(entry: Path) -> Iterator[None]:
    """Held by one process of the host at a time, for this entry; a dead holder frees it."""
    with entry.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def processor() -> str:
    """The processor's model and a digest of its features: compiled code depends on both."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    facts: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())  # the first core speaks for all
    flags = facts.get("flags") or facts.get("Features") or ""  # x86, ARM
    digest = hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()[:12]
    return f"{platform.machine()} {facts.get('model name') or platform.processor()} {digest}"


def _key(parts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()[:32]


def _rebuild(entry: Path, parts: Sequence[str], build: Callable[[Path], None]) -> None:
    for leftover in entry.parent.glob(f"{entry.name}.build-*"):
        shutil.rmtree(leftover)  # we hold the lock, so its builder is dead
    if entry.exists():
        shutil.rmtree(entry)
    folder = Path(tempfile.mkdtemp(prefix=f"{entry.name}.build-", dir=entry.parent))
    try:
        build(folder)
        _seal(folder, parts)
        folder.rename(entry)
        _flush(entry.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _seal(folder: Path, parts: Sequence[str]) -> None:
    """Everything reaches the disk before the manifest does, and the manifest before the rename."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    for file in files:
        _flush(file)
    sizes = {file.relative_to(folder).as_posix(): file.stat().st_size for file in files}
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"parts": list(parts), "files": sizes}, indent=1))
    for place in (manifest, *(path for path in folder.rglob("*") if path.is_dir()), folder):
        _flush(place)


def _whole(entry: Path) -> bool:
    try:
        sizes = json.loads((entry / MANIFEST).read_text())["files"]
        return all((entry / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
