"""Access to folders and objects in object stores, by fsspec's URLs (`s3://`, `gs://`, …).

The store's own library takes credentials and endpoints from the process's environment; settings
never contain them. The library is an extra of this package, and is imported only when a URL of its
scheme is used. Source: fsspec's registry of implementations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deployments.settings.remote_source import HTTP, SourceError, redacted

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "abfs": "azure", "az": "azure"}


def complaint(url: str, *, here: bool) -> str | None:
    """What is wrong with the URL's scheme, or None. `here`: the scheme's library must be
    installed."""
    import fsspec

    scheme = url.partition("://")[0]
    if scheme not in fsspec.available_protocols():
        return (
            f"{redacted(url)}: the scheme {scheme} is unknown; must be s3, gs, https, file or "
            "another scheme of fsspec"
        )
    if here:
        try:
            fsspec.get_filesystem_class(scheme)
        except ImportError as error:
            extra = EXTRAS.get(scheme)
            how = f"pip install 'headrace[{extra}]'" if extra else str(error)
            return f"{redacted(url)}: the library for {scheme}:// is not installed; {how}"
    return None


def store(url: str) -> tuple[Any, str]:
    """fsspec's file system and the path in it. Raises SourceError."""
    import fsspec

    if url.partition("://")[0] in HTTP:
        raise SourceError(
            f"{redacted(url)} cannot be written or listed; must be the URL of an object store"
        )
    if wrong := complaint(url, here=True):
        raise SourceError(wrong)
    try:
        file_system, path = fsspec.core.url_to_fs(url)
    except Exception as error:  # each store's library has errors of its own
        raise SourceError(f"{redacted(url)}: {type(error).__name__}: {error}") from error
    return file_system, str(path)


def files_below(file_system: Any, path: str) -> Iterator[tuple[str, int]]:
    """(name below the folder, size in bytes) of each file there, sorted by name."""
    start = path.rstrip("/") + "/"
    found = file_system.find(path, detail=True)
    for name in sorted(found):
        if name.startswith(start) and not name.endswith("/"):
            yield name.removeprefix(start), int(found[name]["size"] or 0)
