"""Fetches `hf:ORG/NAME@COMMIT` from Hugging Face's hub, by its own library into its own cache.

So a model that another program fetched is not fetched again, and the library's own environment
decides about mirrors (`HF_ENDPOINT`), tokens (`HF_TOKEN`), folders (`HF_HOME`) and networks
(`HF_HUB_OFFLINE`). Only what a model is read from is fetched: never pickles or code. The cache
names each file by its digest, which is compared once for each file on this node. It knows by the
commit's list of files whether all are there; where it has no such list, the hub is asked.
Source: huggingface_hub 2.4, `snapshot_download`.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from deployments.settings.remote_source import HubSource, SourceError
from runtimes import staging
from runtimes.source import external_data

TEXTS = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")  # `*` goes into folders too
READ = ("*.safetensors", *TEXTS)
NEVER = ("original/*", "consolidated*", "onnx/*", "openvino/*", ".*")
FREE_BYTES = 256 << 20  # left on the disk, as by every other fetch
_ASK_S = 5.0
_REMAINS_S = 600.0  # a part that nobody has written to for so long is of a killed download


def fetched(source: HubSource, cache_dir: Path, progress: Callable[[float], None]) -> Path:
    """The folder of this commit, or the file in it that `source.inside` names. Blocks until all is
    on this machine, also while another process here fetches it. Raises SourceError."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    with staging.exclusive(cache_dir / f"hub-{source.repo.replace('/', '--')}"):
        place = _folder(source, cache_dir, progress, ())
        if source.inside.endswith(".onnx"):  # its weights may have any name
            file = place / source.inside
            inside = source.inside.rpartition("/")[0]
            lacking = [
                name for name in sorted(external_data(file)) if not (file.parent / name).exists()
            ]
            if lacking:
                more = [f"{inside}/{name}".lstrip("/") for name in lacking]
                _folder(source, cache_dir, progress, more)
    return place / source.inside


def _folder(
    source: HubSource, cache_dir: Path, progress: Callable[[float], None], more: Sequence[str]
) -> Path:
    """`more`: files that are fetched besides. A commit that is complete here is not asked for."""
    wanted, never = _patterns(source)
    wanted += [glob.escape(name) for name in more]
    given: dict[str, Any] = {
        "repo_id": source.repo,
        "revision": source.commit,
        "allow_patterns": wanted,
        "ignore_patterns": never,
    }
    from huggingface_hub import constants, snapshot_download  # late: it takes a second

    nothing_said = _bar(0, lambda _: None)
    files = _said(source, snapshot_download, **given, dry_run=True, tqdm_class=nothing_said)
    cache = Path(constants.HF_HUB_CACHE)
    home = cache / f"models--{source.repo.replace('/', '--')}"
    _complete(source, [file.filename for file in files])
    if missing := sum(file.file_size or 0 for file in files if file.will_download):
        _without_remains(home / "blobs")
        _room(source, cache, missing)
    given["tqdm_class"] = _bar(missing, progress)
    place = Path(_said(source, snapshot_download, **given))
    if not (home / "trees" / f"{source.commit}.json").is_file():
        raise SourceError(
            f"{source} is not known to be complete on this machine, and {_away(None)}"
        )
    for file in files:
        _undamaged(place / file.filename, cache_dir)
    return place


def _without_remains(blobs: Path) -> None:
    """Removes what downloads left that were killed: the library begins each anew."""
    for part in blobs.glob("*.incomplete"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > _REMAINS_S:
                part.unlink()


def commit_of(repo: str, revision: str) -> str:
    """The commit that a branch or tag names now; "" where the hub does not say."""
    try:
        from huggingface_hub import HfApi

        return HfApi().model_info(repo, revision=revision or None, timeout=_ASK_S).sha or ""
    except Exception:  # only for a better message: whatever went wrong, there is none
        return ""


def _patterns(source: HubSource) -> tuple[list[str], list[str]]:
    """What is fetched, and what is not although it matches."""
    if not source.inside:
        return list(READ), list(NEVER)
    name = glob.escape(source.inside)
    inside = [name, f"{name}_data*", f"{name}.data*"]
    if name.endswith(".xml"):
        inside.append(f"{name.removesuffix('.xml')}.bin")
    return [*inside, *(f"{name}/{each}" for each in READ), *TEXTS], ["*/.*", ".*"]


def _complete(source: HubSource, names: list[str]) -> None:
    """Refuses what could not be served, before it is fetched."""
    if source.inside and not any(
        name == source.inside or name.startswith(f"{source.inside}/") for name in names
    ):
        raise SourceError(f"{source} holds no such file that could be read")
    if not source.inside and not any(name.endswith(".safetensors") for name in names):
        raise SourceError(
            f"{source} holds no *.safetensors: pickled weights run code when opened, and are not "
            "fetched; of an ONNX file in it end the source with #inside=PATH"
        )


def _room(source: HubSource, cache: Path, size: int) -> None:
    while not cache.exists():
        cache = cache.parent
    free = shutil.disk_usage(cache).free - FREE_BYTES
    if size > free:
        raise SourceError(
            f"{source} takes {size >> 20} MiB more, and {cache} has {max(free, 0) >> 20} MiB free"
        )


def _said(source: HubSource, call: Callable[..., Any], **given: Any) -> Any:
    """What the library answers; what goes wrong is said in a sentence with what to do."""
    from huggingface_hub import errors

    try:
        return call(**given)
    except errors.DryRunError as error:  # it has no list of the commit's files
        why = error.__cause__ or error
    except Exception as error:  # the library passes on whatever its HTTP client raises
        why = error
    raise SourceError(f"{source} {_sentence(why)}")


def _sentence(why: BaseException) -> str:
    from huggingface_hub import errors

    if isinstance(why, errors.GatedRepoError):
        return "is gated: accept its terms on its page, and set HF_TOKEN where the replica runs"
    if isinstance(why, errors.RepositoryNotFoundError):
        return "does not exist on the hub, or is private: then set HF_TOKEN where the replica runs"
    if isinstance(why, errors.RevisionNotFoundError):
        return "is not on the hub: the model has no such commit"
    return f"is not known to be complete on this machine, and {_away(why)}"


def _away(why: BaseException | None) -> str:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    return "the hub cannot be reached" + (f" ({_end(why)})" if why else "")


def _end(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    said = re.sub(r"(?<=\S)\?\S+", "", f"{type(error).__name__}: {error}")  # a query may be signed
    return " ".join(said.split())[:300]


def _bar(total: int, progress: Callable[[float], None]) -> type:
    """Takes the place of the library's progress bars: says the share of `total` bytes."""
    from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **{**options, "file": io.StringIO()})  # prints nothing

        def update(self, n: float | None = 1) -> None:
            super().update(n)
            if self.unit == "B" and total:
                progress(min(1.0, self.n / total))

    return Bar


def _undamaged(file: Path, cache_dir: Path) -> None:
    """Compares a file with its name in the cache: its SHA-256, or Git's own digest of it. The link
    may lead on, to where the cache shares content by another digest."""
    name = Path(os.readlink(file)).name if file.is_symlink() else ""
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", name):
        return
    if len(name) == 64:
        found = staging.file_digest(file.resolve(), cache_dir)
    else:
        content = file.read_bytes()
        git = hashlib.sha1(usedforsecurity=False)
        git.update(b"blob %d\0" % len(content))
        git.update(content)
        found = git.hexdigest()
    if found != name:
        raise SourceError(f"{file} is damaged, its digest differs: remove {file.resolve()}")
