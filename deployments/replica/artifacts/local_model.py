"""Which of a model's settings name files, and where are those files on this node?

Remote files are fetched, verified and kept in the node's cache folder, once for all replicas of the
node however many start at once (`runtimes.staging`: a file lock, which the kernel frees when a
process dies, and a rename). Paths, packages and generated files are only looked for. The digest of
a `file://` source is compared at every start, because each node has a file of its own there.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from deployments.replica.artifacts import archive, packages
from deployments.replica.artifacts.fetch import SourceFetch, mismatch
from deployments.settings import model_paths, remote_source
from deployments.settings.accept import PATHS
from deployments.settings.model import ModelSettings
from deployments.settings.python_source import with_folder
from deployments.settings.remote_source import RemoteSource, SourceError
from deployments.settings_files import hub, sources
from runtimes import adapter_files, staging
from runtimes.errors import LoadError
from runtimes.types import Adapter

PHASE = "staging"
LAYOUT = "1"  # of a cache entry; raised when the same source is laid out differently
Progress = Callable[[str, float], None]
logger = logging.getLogger("headrace.replica")


def local_model(model: ModelSettings, cache_dir: Path, progress: Progress) -> ModelSettings:
    """The model with local paths in place of its remote sources. Its options stay as they are,
    because they are part of its version. Its packages are installed. Raises SourceError."""
    packages.install(model.dependencies, cache_dir, progress)
    accept = {
        name: str(local_file(named, cache_dir, progress))
        for name in PATHS
        if (named := getattr(model.accept, name)) is not None and remote_source.is_url(named)
    }
    changes: dict[str, Any] = {}
    if accept:
        changes["accept"] = model.accept.model_copy(update=accept)
    if model.source is not None and remote_source.is_url(model.source):
        place = str(local_file(model.source, cache_dir, progress))
        changes["source"] = with_folder(model.source, place)
    return model.model_copy(update=changes) if changes else model


def local_options(
    options: Mapping[str, Any], cache_dir: Path, progress: Progress
) -> Mapping[str, Any]:
    """The options that the backend gets: with files on this node in place of URLs, of folders in a
    package and of made ones. Raises SourceError."""

    def here(named: str) -> str:
        plain = not (remote_source.is_url(named) or named.startswith(sources.PREFIXES))
        return named if plain else str(local_file(named, cache_dir, progress))

    return model_paths.changed_options(options, here)


def local_file(source: str, cache_dir: Path, progress: Progress) -> Path:
    """The file or folder on this node. Blocks while this or another process fetches it. `progress`:
    called with the phase "staging". Raises SourceError."""
    if remote_source.is_on_the_hub(source):
        found = remote_source.parse_hub(source)
        return hub.fetched(found, cache_dir, lambda share: progress(PHASE, share))
    if remote_source.is_remote(source):
        return _fetched(remote_source.parse(source), cache_dir, progress)
    path = sources.resolve(source)
    if source.startswith("file://"):
        wrong = mismatch(path, remote_source.local_path(source)[1])
        if wrong:
            raise SourceError(f"{source.partition('#')[0]}: {wrong}")
    return path


class LocalAdapters:
    """Makes adapters that are fetched and checked when they are asked for. `base`: the model's
    folder; None: they need not fit it."""

    def __init__(self, base: Path | None, max_rank: int, cache_dir: Path) -> None:
        self._base, self._max_rank, self._cache_dir = base, max_rank, cache_dir

    def made(self, sources_by_name: Mapping[str, str]) -> dict[str, Adapter]:
        """By name."""
        return {
            name: Adapter(source, partial(self._files, source))
            for name, source in sources_by_name.items()
        }

    def _files(self, source: str) -> tuple[Path, str]:
        folder = local_file(source, self._cache_dir, lambda phase, share: None)
        adapter_files.check(folder, self._base, self._max_rank)
        return folder, staging.digest_of(files_of(folder), folder, None)


def max_lora_rank(model: ModelSettings) -> int:
    """The rank that the engine is started for: as the options say, else that of the adapters that
    are on this node and can be read. 0: the model has no adapters."""
    given = model.options.get("max_lora_rank")
    if given or not model.adapters:
        return int(given or 0)
    ranks = [adapter_files.FIRST_RANK]
    for each in model.adapters.values():
        if not remote_source.is_remote(each):
            with suppress(LoadError, OSError):  # it fails its own requests, which says why
                ranks.append(adapter_files.largest_rank([sources.resolve(each)]))
    return max(ranks)


def adapter_digests(model: ModelSettings, cache_dir: Path | None) -> dict[str, str]:
    """What tells the content of each adapter from any other's: of one that cannot be read here, the
    source. Its own requests fail, and no others."""
    digests = {}
    for name, source in model.adapters.items():
        try:
            digests[name] = content_of(source, cache_dir)
        except (LoadError, OSError) as fault:
            logger.error("the adapter %s cannot be read: %s", name, fault)
            digests[name] = hashlib.sha256(source.encode()).hexdigest()
    return digests


def content_of(source: str, cache_dir: Path | None) -> str:
    """What tells the content of a file or folder from any other's. Raises SourceError."""
    if remote_source.is_remote(source):
        return remote_source.identity(source)
    path = sources.resolve(source)
    place = path if path.is_dir() else path.parent
    return staging.digest_of(files_of(path), place, cache_dir)


def files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file())


def _fetched(remote: RemoteSource, cache_dir: Path, progress: Progress) -> Path:
    unpacked = archive.stem(remote.name) if remote.is_archive else remote.name

    def build(folder: Path) -> None:
        fetch = SourceFetch(remote, cache_dir, lambda share: progress(PHASE, share))
        with fetch.verified() as fetched:
            if remote.is_archive:
                archive.unpack(fetched, folder / unpacked)
            else:
                fetched.rename(folder / unpacked)

    parts = ["source", LAYOUT, remote.sha256, remote.name]
    place = staging.staged(cache_dir, parts, build) / unpacked
    return _inside(remote, place)


def _inside(remote: RemoteSource, place: Path) -> Path:
    """The named path inside the source. An archive that holds only one folder stands for that
    folder."""
    entries = sorted(place.iterdir()) if place.is_dir() else []
    top = entries[0] if remote.is_archive and len(entries) == 1 else place
    if not remote.inside:
        return top
    for path in (place / remote.inside, top / remote.inside):
        if path.exists():
            return path
    names = [each.name for each in (top.iterdir() if top.is_dir() else [top])]
    listed = ", ".join(sorted(names)[:10]) + (", …" if len(names) > 10 else "")
    raise SourceError(f"{remote} has no {remote.inside}; it has {listed}")
