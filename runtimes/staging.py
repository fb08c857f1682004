"""Converts each model once a host, however many replicas start at the same time, and hashes files.

`staged` returns the folder with the result of a build. Its key is everything that the result
depends on. The first caller builds under a file lock in a temporary folder, writes a manifest,
flushes and renames the folder; callers that waited find it there. An entry with a missing file, or
one of another size, is built again. Contents are not checked: the cache folder belongs to the user
that runs the service. A build also removes entries from which no replica has started for 30 days.

`digest_of` reads each file once and keeps its hash in the cache folder under path, size and
modification time. Names enter the digest relative to the model's folder.
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
KEPT_UNUSED_S = 30 * 86_400


def staged(cache_dir: Path, parts: Sequence[str], build: Callable[[Path], None]) -> Path:
    """The folder that `build(folder)` filled, now or earlier, for exactly these `parts`.

    Blocks while another process builds the same. What `build` raises comes through, and nothing
    stays behind. Files that appear in the folder later are no part of the entry's check.
    """
    entry = _entry(cache_dir, parts)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        _lock_of(entry).touch()  # from here on it counts as used
    except OSError as error:
        raise LoadError(f"the cache folder {cache_dir} cannot be written: {error}") from error
    with exclusive(entry):
        if _whole(entry):
            return entry
        _remove(entry)
        folder = Path(tempfile.mkdtemp(prefix=f"{entry.name}.build-", dir=entry.parent))
        try:
            build(folder)
            _seal(folder, parts)
            folder.rename(entry)
            _flush(entry.parent)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        _remove_unused(entry)
    return entry


def is_staged(cache_dir: Path, parts: Sequence[str]) -> bool:
    """Whether `staged` would find what it made before."""
    return _whole(_entry(cache_dir, parts))


def _entry(cache_dir: Path, parts: Sequence[str]) -> Path:
    key = hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()[:32]
    return cache_dir / "staged" / key


@contextlib.contextmanager
def exclusive(entry: Path) -> Iterator[None]:
    """Held by one process of the host at a time, for this entry; a dead holder frees it."""
    with _lock_of(entry).open("a") as lock:
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


def _lock_of(entry: Path) -> Path:
    """Its modification time is when the entry was last asked for. It outlives the entry: whoever
    waits for a lock file that is deleted would hold a lock that nobody else sees."""
    return entry.with_suffix(".lock")


def _remove_unused(fresh: Path) -> None:
    """Of the entries beside `fresh`, which was asked for just now."""
    now = _lock_of(fresh).stat().st_mtime
    for lock in fresh.parent.glob("*.lock"):
        if now - lock.stat().st_mtime <= KEPT_UNUSED_S:
            continue
        with contextlib.suppress(OSError), lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if now - lock.stat().st_mtime > KEPT_UNUSED_S:  # still, and nobody else can use it
                _remove(lock.with_suffix(""))


def _remove(entry: Path) -> None:
    """With what dead builds left of it: we hold the lock, so their builders are dead."""
    for folder in (entry, *entry.parent.glob(f"{entry.name}.build-*")):
        if folder.exists():
            shutil.rmtree(folder)


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


def digest_of(files: Sequence[Path], base: Path, cache_dir: Path | None = None) -> str:
    """64 hexadecimal digits over the files' names (relative to `base`) and contents, in order."""
    total = hashlib.sha256()
    for file in files:
        name = file.relative_to(base).as_posix()
        total.update(f"{name}\0{file_digest(file, cache_dir)}\n".encode())
    return total.hexdigest()


def file_digest(file: Path, cache_dir: Path | None) -> str:
    """SHA-256 of a file. With `cache_dir`, an unchanged one (size, mtime) is not read again."""
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
