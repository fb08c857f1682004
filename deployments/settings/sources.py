"""Where a model's artifact is: a path, `package:NAME/sub/folder` inside an installed package,
`made:NAME/inside`, which a script of the examples makes, `file:///path`, or a URL with a digest.

Paths are relative to the settings file; packages are looked up on the machine that loads the model,
and are never imported. `resolve` is of what lies on this machine; what lies elsewhere a replica
fetches when it starts (`deployments/replica/artifacts/`). What kind of artifact it is, and whether
it is safe to load, is the runtime's business.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path, PurePosixPath

from deployments.settings import made, object_store, remote_source
from deployments.settings.remote_source import SourceError as SourceError

PREFIX = "package:"
FOLDER = "HEADRACE_SOURCES"
MADE = "made:"


def absolute(source: str, folder: Path) -> str:
    """Packages, what is made and URLs as they are; paths made absolute against `folder`, `~`
    expanded. What can be no path stays as it is, for `resolve` to refuse."""
    if source.startswith((PREFIX, MADE)) or remote_source.is_url(source):
        return source
    try:
        return str((folder / Path(source).expanduser()).resolve())
    except (OSError, ValueError, RuntimeError):
        return source


def sources_folder() -> Path | None:
    """What relative paths are relative to on this machine, $HEADRACE_SOURCES: the settings file's
    folder, where the host sets it; else where this node's image or volume has the models."""
    folder = os.environ.get(FOLDER)
    return Path(folder) if folder else None


def check(source: str, *, here: bool) -> str | None:
    """What is wrong with it, None where nothing is; nothing is fetched. `here`: the model will run
    on this machine."""
    try:
        if remote_source.is_remote(source):
            scheme = remote_source.parse(source).scheme
            known = scheme in remote_source.HTTP
            return None if known else object_store.complaint(source, here=here)
        if source.startswith("file://"):
            remote_source.local_path(source)
        if here:
            resolve(source)
    except SourceError as error:
        return str(error)
    return None


def resolve(source: str) -> Path:
    """The file or folder itself. Raises SourceError where it is missing, or not on this machine."""
    if remote_source.is_remote(source):
        raise SourceError(f"{remote_source.shown(source)} has to be fetched before it is used")
    if source.startswith(MADE):
        path = _made(source)
    elif source.startswith("file://"):
        path = Path(remote_source.local_path(source)[0])
    else:
        path = _in_package(source) if source.startswith(PREFIX) else _path(source)
    try:
        found = path.exists()
    except (OSError, ValueError):
        found = False
    if not found:
        raise SourceError(f"no file or folder {str(path)!r}")
    return path


def _path(source: str) -> Path:
    path = Path(source)
    if not path.is_absolute():
        raise SourceError(
            f"{source!r} is relative to $HEADRACE_SOURCES, which is not set on this node"
        )
    return path


def _made(source: str) -> Path:
    name, _, inside = source.removeprefix(MADE).partition("/")
    if ".." in PurePosixPath(inside).parts or inside.startswith("/"):
        raise SourceError(f"{source!r} leads out of what is made; must be made:NAME/inside")
    try:
        return made.folder(name) / inside
    except made.CannotMake as error:
        raise SourceError(str(error)) from error


def _in_package(source: str) -> Path:
    package, _, inside = source.removeprefix(PREFIX).partition("/")
    if not all(part.isidentifier() for part in package.split(".")):
        raise SourceError(f"{source!r} names no package; must be package:NAME/sub/folder")
    if ".." in PurePosixPath(inside).parts or inside.startswith("/"):
        raise SourceError(f"{source!r} leads out of the package; must be package:NAME/sub/folder")
    return _package_folder(package) / inside


def _package_folder(package: str) -> Path:
    # Only a top-level name is looked up without importing anything.
    top, *inner = package.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        distribution = top.replace("_", "-")
        raise SourceError(
            f"package {top} is not installed; try `pip install --no-deps {distribution}`"
        )
    if not spec.submodule_search_locations:
        raise SourceError(f"{top} is a single module and contains no files")
    return Path(next(iter(spec.submodule_search_locations))).joinpath(*inner)
