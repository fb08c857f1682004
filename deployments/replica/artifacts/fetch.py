"""Brings one remote source to this node's disk: resumed after a cut, bounded, verified.

A source that is not whole stays below `downloads/` in the cache folder, so that a killed process,
or a start that ran out of time, costs only time. A partial file may be of a version that no longer
exists. So a wrong digest after resuming is not believed, and everything is fetched once more. If
the digest is wrong again, everything is deleted.

Call it under the lock of the cache entry that it fetches for: one process a source and node.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from deployments.replica.artifacts.checksum import mismatch
from deployments.replica.artifacts.download import RemoteFile, Sleep, download, size_of, trying
from deployments.replica.artifacts.readers import HttpReader, StoreReader, store_faults
from deployments.replica.artifacts.room import check_room, disk_fault
from deployments.settings.remote_source import HTTP, RemoteSource, SourceError, escapes_folder
from deployments.settings_files.object_store import files_below, store
from runtimes.staging import KEPT_UNUSED_S

MAX_FILES = 10_000
FOLDER = "downloads"
_TOLD = 0.01  # the steps in which progress is told


class Fetch:
    """One source to fetch. `progress` is called with the share that is there, 0..1."""

    def __init__(
        self,
        remote: RemoteSource,
        cache_dir: Path,
        progress: Callable[[float], None],
        *,
        sleep: Sleep = time.sleep,
    ) -> None:
        self._remote = remote
        self._progress = progress
        self._sleep = sleep
        name = hashlib.sha256(remote.name.encode()).hexdigest()[:8]
        self._partial = cache_dir / FOLDER / f"{remote.sha256}-{name}"
        self._told = 0.0

    @contextlib.contextmanager
    def verified(self) -> Iterator[Path]:
        """The whole file or folder, for the caller to move or read; removed afterwards. Raises
        SourceError."""
        self._progress(0.0)
        try:
            self._partial.mkdir(parents=True, exist_ok=True)
            _remove_forgotten(self._partial)
            yield self._with_right_digest()
            shutil.rmtree(self._partial, ignore_errors=True)
        except OSError as error:
            raise disk_fault(str(self._remote), self._partial, error) from error
        self._progress(1.0)

    def _with_right_digest(self) -> Path:
        fetched = self._partial / self._remote.name
        resumed = True
        while resumed:
            resumed = self._complete()
            wrong = mismatch(fetched, self._remote.sha256)
            if wrong is None:
                return fetched
            shutil.rmtree(self._partial)
        raise SourceError(
            f"{self._remote}: {wrong}, as the settings say; nothing of it is used. Either it has "
            "changed since, or it was tampered with"
        )

    def _complete(self) -> bool:
        """Fetch what is missing. Returns whether anything was there."""
        files = self._files()
        sizes = [file.size for file in files]
        whole = None if None in sizes else sum(size or 0 for size in sizes)
        parts = [self._partial / file.name for file in files]
        self._remove_others(parts)
        if whole is not None:
            there = sum(map(size_of, parts))
            check_room(str(self._remote), self._partial, whole - there)
        before, resumed = 0, False
        for file, part in zip(files, parts, strict=True):
            resumed |= download(file, part, self._teller(before, whole), self._sleep)
            before += size_of(part)
        return resumed

    def _teller(self, before: int, whole: int | None) -> Callable[[int, int | None], None]:
        def report(there: int, size: int | None) -> None:
            share = (before + there) / max(whole or size or 0, 1) if whole or size else 0.0
            if share >= self._told + _TOLD:
                self._told = share
                self._progress(min(share, 1.0))

        return report

    def _files(self) -> list[RemoteFile]:
        """The remote files. Raises SourceError."""
        remote = self._remote
        if remote.scheme in HTTP:
            return [RemoteFile(remote.name, str(remote), HttpReader(remote.url))]
        return trying(self._listed, lambda: 0, str(remote), self._sleep)

    def _listed(self) -> list[RemoteFile]:
        remote = self._remote
        file_system, path = store(remote.url)
        with store_faults(remote.url):
            if not remote.is_folder and file_system.isfile(path):
                reader = StoreReader(file_system, path, remote.url)
                size = int(file_system.info(path)["size"])
                return [RemoteFile(remote.name, str(remote), reader, size)]
            found = list(files_below(file_system, path))
        if not found:
            raise SourceError(f"{remote} is not there, or is an empty folder")
        if len(found) > MAX_FILES:
            raise SourceError(
                f"{remote} has {len(found)} files, more than {MAX_FILES}; give an archive of it"
            )
        return [
            self._file_below(StoreReader(file_system, f"{path.rstrip('/')}/{name}", remote.url),
                             name, size)
            for name, size in found
        ]  # fmt: skip

    def _file_below(self, reader: StoreReader, name: str, size: int) -> RemoteFile:
        if escapes_folder(name) or PurePosixPath(name).as_posix() != name:
            raise SourceError(f"{self._remote} has a file named {name!r}, which leads out of it")
        shown = f"{str(self._remote).rstrip('/')}/{name}"
        return RemoteFile(f"{self._remote.name}/{name}", shown, reader, size)

    def _remove_others(self, parts: list[Path]) -> None:
        """Delete files that an earlier try fetched and the source does not list any more."""
        known = set(parts)
        for path in list(self._partial.rglob("*")):
            if path.is_file() and path not in known:
                path.unlink()


def _remove_forgotten(fresh: Path) -> None:
    """Delete downloads that were not continued for as long as unused cache entries are kept."""
    fresh.touch()
    now = fresh.stat().st_mtime
    for partial in fresh.parent.iterdir():
        with contextlib.suppress(OSError):
            if now - partial.stat().st_mtime > KEPT_UNUSED_S:
                shutil.rmtree(partial)
