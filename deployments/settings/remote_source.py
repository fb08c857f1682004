"""Parses a model's remote source: a URL with a digest, or a commit of Hugging Face's hub. Reads
nothing from the network.

Examples: `https://host/minilm.onnx#sha256=HEX`,
`s3://bucket/minilm/#sha256=HEX&inside=model.onnx`. The digest is in the fragment, as in pip (PEP
503), so that one text names place and content. For a file it is what `sha256sum` prints; for a
folder in an object store, the SHA-256 of the sorted list that `sha256sum` prints of its files
(docs/sources.md; as Go's `dirhash`). `inside` is a path in an archive or folder. Every scheme needs
a digest: nodes fetch at different times and must all serve the same content. On the hub a commit is
one: `hf:ORG/NAME@COMMIT`, `hf:ORG/NAME@COMMIT#inside=onnx/model.onnx`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import SplitResult, unquote, urlsplit

from deployments.settings.python_source import folder_of
from runtimes.errors import LoadError

HTTP = ("http", "https")
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip")
HUB = "hf:"
_HUB = re.compile(r"hf:(?P<repo>[\w.-]{1,96}(?:/[\w.-]{1,96})?)(?:@(?P<revision>[^@#:]{1,200}))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[^\x00-\x1f/\\]{1,200}")
_KEYS = ("sha256", "inside")


class SourceError(LoadError):
    """The artifact cannot be had; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class RemoteSource:
    """A parsed remote source."""

    url: str  # without the fragment
    name: str  # of the file or folder
    sha256: str  # 64 hexadecimal digits
    inside: str  # path in the archive or folder; "": the whole of it

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0]

    @property
    def is_folder(self) -> bool:
        """Whether the URL ends in a slash. In an object store a URL without one may be a folder
        too."""
        return self.url.endswith("/")

    @property
    def is_archive(self) -> bool:
        return not self.is_folder and self.name.lower().endswith(ARCHIVES)

    def __str__(self) -> str:
        return redacted(self.url)


@dataclass(frozen=True, slots=True)
class HubSource:
    """A parsed source on Hugging Face's hub. `inside`: a path in it; "": the whole of it."""

    repo: str
    commit: str  # 40 hexadecimal digits
    inside: str

    def __str__(self) -> str:
        return f"{HUB}{self.repo}@{self.commit}" + (f"#inside={self.inside}" if self.inside else "")


class NoCommit(SourceError):
    """A source on the hub names none, or a branch or tag, which moves."""

    def __init__(self, repo: str, revision: str, commit: str = "") -> None:
        which = f"{revision!r}, which is no commit" if revision else "no commit"
        now = f", which {revision or 'main'} is now" if commit else ", of 40 digits"
        super().__init__(
            f"{HUB}{repo} names {which}: branches move, and nodes fetch at "
            "different times; must be "
            f"{HUB}{repo}@{commit or 'COMMIT'}{now}"
        )
        self.repo = repo
        self.revision = revision


def is_url(source: str) -> bool:
    """Whether the source is a URL or on the hub: neither a path nor `package:` nor `made:`."""
    return _URL.match(source) is not None or is_on_the_hub(source)


def is_on_the_hub(source: str) -> bool:
    return source.startswith(HUB) and not source.startswith(f"{HUB}//")  # a scheme of fsspec's


def is_remote(source: str) -> bool:
    """Whether the source must be fetched before use."""
    return is_url(source) and not source.startswith("file://")


def parse(source: str) -> RemoteSource:
    """The parts of a remote source. Raises SourceError, which says what would be right."""
    source = folder_of(source)
    url, _, fragment = source.rpartition("#") if "#" in source else (source, "", "")
    parts = _split(url)
    if not parts.netloc:
        raise SourceError(f"{redacted(url)} names no host or bucket")
    if "@" in parts.netloc:
        raise SourceError(
            f"{redacted(url)} holds a user's name or password; must be left out: each node takes "
            "them from its own environment (docs/sources.md)"
        )
    given = _fragment(redacted(url), fragment)
    if "sha256" not in given:
        raise SourceError(
            f"{redacted(url)} has no digest; must end with #sha256= and the 64 digits that "
            "`sha256sum` prints of the file (docs/sources.md: of a folder)"
        )
    name = unquote(PurePosixPath(parts.path).name) or parts.netloc
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise SourceError(f"{redacted(url)} names no file or folder")
    if parts.scheme in HTTP and url.endswith("/"):
        raise SourceError(
            f"{redacted(url)} is a folder, which {parts.scheme} cannot list; name a file, or an "
            f"archive of the folder ({', '.join(ARCHIVES)})"
        )
    return RemoteSource(url, name, given["sha256"], given.get("inside", ""))


def parse_hub(source: str) -> HubSource:
    """The parts of a source on the hub. Raises SourceError, which says what would be right."""
    place, _, fragment = source.partition("#")
    found = _HUB.fullmatch(place)
    if found is None:
        raise SourceError(f"{source!r} must be {HUB}ORG/NAME@COMMIT")
    given = _fragment(place, fragment)
    if "sha256" in given:
        raise SourceError(f"{place}: sha256 must be left out: the commit says what the files are")
    commit = found["revision"] or ""
    if not _COMMIT.fullmatch(commit):
        raise NoCommit(found["repo"], commit)
    return HubSource(found["repo"], commit, given.get("inside", "").strip("/"))


def identity(source: str) -> str:
    """What tells the content of a remote source from any other's. Raises SourceError."""
    if is_on_the_hub(source):
        return str(parse_hub(source))
    remote = parse(source)
    return remote.sha256 + remote.inside


def local_path(source: str) -> tuple[str, str]:
    """(path, digest) of a source `file:///path`; digest "": none is given. Raises SourceError."""
    source = folder_of(source)
    url, _, fragment = source.partition("#")
    parts = _split(url)
    if parts.netloc or not parts.path.startswith("/"):
        raise SourceError(f"{url} is not a path on this machine; must be file:///absolute/path")
    given = _fragment(url, fragment)
    inside = given.get("inside", "")
    path = unquote(parts.path)
    return (f"{path.rstrip('/')}/{inside}" if inside else path), given.get("sha256", "")


def path_of(folder: str) -> str:
    """The path of a folder, which may be written as `file:///path`. Raises SourceError."""
    return local_path(folder)[0] if is_url(folder) else folder


def redacted(url: str) -> str:
    """The URL for messages: without its digest, and without parts that may be secret (a password,
    a signature)."""
    if is_on_the_hub(url):
        return url
    plain = (url.rpartition("#")[0] or url).partition("?")[0]
    scheme, _, rest = plain.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def escapes_folder(path: str) -> bool:
    """Whether a path that should stay inside a folder leads out of it."""
    return path.startswith("/") or "\\" in path or ".." in PurePosixPath(path).parts


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url, allow_fragments=False)  # keys of objects may hold a #
    except ValueError as error:
        raise SourceError(f"{redacted(url)} is no URL: {error}") from None


def _fragment(url: str, fragment: str) -> dict[str, str]:
    given = dict(_pairs(url, fragment))
    if "sha256" in given and not _SHA256.fullmatch(given["sha256"]):
        raise SourceError(
            f"{url}: sha256 is {given['sha256'][:80]!r}; must be 64 digits, 0 to 9 and a to f"
        )
    if escapes_folder(given.get("inside", "")):
        raise SourceError(f"{url}: inside is {given['inside']!r}, which leads out of it")
    return given


def _pairs(url: str, fragment: str) -> Iterator[tuple[str, str]]:
    for pair in filter(None, fragment.split("&")):
        key, _, value = pair.partition("=")
        if key not in _KEYS:
            raise SourceError(
                f"{url}: #{pair[:80]} is unknown; must be #sha256=DIGITS or "
                "#sha256=DIGITS&inside=PATH"
            )
        yield key, unquote(value)
