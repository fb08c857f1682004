"""Where a model's artifact is, from the text of its `source`.

A source is a path, `package:NAME/sub/folder` inside an installed package, `made:NAME/inside` (made
by a script of the examples), `file:///path`, a URL with a digest, or `hf:ORG/NAME@COMMIT`; any but
the last may be the folder of a Python class, and `python:` names one that is imported. Paths are
relative to the settings file. Packages are looked up on the machine that loads the model, and never
imported. `resolve` is for sources on this machine; a replica fetches remote ones when it starts
(`deployments/replica/artifacts/`). The runtime decides what kind of artifact it is, and whether it
is safe to load.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path, PurePosixPath

from deployments.settings import remote_source
from deployments.settings.python_source import (
    FORMS,
    IMPORTED,
    folder_of,
    python_class,
    with_folder,
)
from deployments.settings.remote_source import SourceError as SourceError
from deployments.settings_files import hub, made, object_store
from headrace.loading import module_file

PREFIX = "package:"
FOLDER = "HEADRACE_SOURCES"
MADE = "made:"
_MAX_LISTED = 10  # names in a message
PREFIXES = (PREFIX, MADE, IMPORTED)


def absolute(source: str, folder: Path) -> str:
    """A path made absolute against `folder`, with `~` expanded; any other source unchanged. A link
    keeps its own name, because that says what kind of file it is: a link into Hugging Face's cache
    leads to a file that is named by its digest. A text that cannot be a path is returned unchanged;
    `resolve` refuses it."""
    if source.startswith(PREFIXES) or remote_source.is_url(source):
        return source
    if python_class(source) is not None:
        return with_folder(source, absolute(folder_of(source), folder))
    try:
        path = folder / Path(source).expanduser()
        if path.name in ("", ".."):
            return str(path.resolve())
        return str(path.parent.resolve() / path.name)
    except (OSError, ValueError, RuntimeError):
        return source


def sources_folder() -> Path | None:
    """The folder of relative paths on this machine, $HEADRACE_SOURCES: the settings file's folder
    under `headrace serve`, else the folder of models in the node's image or volume. None: unset."""
    folder = os.environ.get(FOLDER)
    return Path(folder) if folder else None


def check(source: str, *, here: bool) -> str | None:
    """What is wrong with the source, or None. Fetches nothing. `here`: the model will run on this
    machine."""
    try:
        if remote_source.is_on_the_hub(source):
            return _on_the_hub(source)
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


def _on_the_hub(source: str) -> str | None:
    """Only for a source without a commit the hub is asked, which it has now."""
    try:
        remote_source.parse_hub(source)
    except remote_source.NoCommit as wrong:
        commit = hub.commit_of(wrong.repo, wrong.revision)
        return str(remote_source.NoCommit(wrong.repo, wrong.revision, commit))
    return None


def resolve(source: str) -> Path:
    """The artifact's file or folder. Raises SourceError if it is missing or remote."""
    if remote_source.is_remote(source):
        raise SourceError(
            f"{remote_source.redacted(source)} is not on this machine; must be fetched before use"
        )
    if source.startswith(IMPORTED):
        return _imported(source)
    source = folder_of(source)
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
        raise SourceError(f"no file or folder {str(path)!r}{_of_the_hub(source, path)}")
    return path


def _of_the_hub(source: str, path: Path) -> str:
    """What to write, where a model's name on the hub was given as a path; else what there is."""
    if ":" in source or path.parent.exists():
        return _there(path)
    place = f"{remote_source.HUB}{path.parent.name}/{path.name}@COMMIT"
    return f"; of Hugging Face's hub it would be {place}"


def _there(path: Path) -> str:
    """What the last folder of the path that there is holds."""
    missing = path
    while not missing.parent.is_dir() and missing != missing.parent:
        missing = missing.parent
    try:
        names = sorted(each.name for each in missing.parent.iterdir() if each.name[:1] != ".")
    except OSError:
        return ""
    return f"; {missing.parent} holds {', '.join(names[:_MAX_LISTED]) or 'nothing'}" + (
        ", …" if len(names) > _MAX_LISTED else ""
    )


def _imported(source: str) -> Path:
    """The folder of the module's file, of a module without a package the file; nothing is
    imported."""
    found = python_class(source)
    if found is None:
        raise SourceError(f"{source!r} names no class; must be {FORMS}")
    file = module_file(None, found.module)
    if file is None:
        raise SourceError(
            f"there is no module {found.module} here; install its package, or add it to the "
            "model's dependencies"
        )
    return file.parent if "." in found.module or file.stem == "__init__" else file


def _path(source: str) -> Path:
    path = Path(source)
    if not path.is_absolute():
        raise SourceError(
            f"{source!r} is relative to $HEADRACE_SOURCES, which is not set on this node; must be "
            "the folder of the models"
        )
    return path


def _made(source: str) -> Path:
    name, _, inside = source.removeprefix(MADE).partition("/")
    if ".." in PurePosixPath(inside).parts or inside.startswith("/"):
        raise SourceError(f"{source!r} leads out of the made folder; must be made:NAME/inside")
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
        raise SourceError(f"{top} is a single module without files; must be a package")
    return Path(next(iter(spec.submodule_search_locations))).joinpath(*inner)
