"""Fetches `hf:ORG/NAME@COMMIT` from Hugging Face's hub, by its own library into its own cache.

So a model that another program fetched is not fetched again, and the library's own environment
decides about mirrors (`HF_ENDPOINT`), tokens (`HF_TOKEN`), folders (`HF_HOME`) and networks
(`HF_HUB_OFFLINE`). Only what a model is read from is fetched: never pickles or code. The cache
names each file by its digest, which is compared once for each file on this node.
Source: huggingface_hub 2.4, `snapshot_download`.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from deployments.settings.remote_source import HubSource, SourceError
from runtimes import staging

TEXTS = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")  # `*` goes into folders too
READ = ("*.safetensors", *TEXTS)
NEVER = ("original/*", "consolidated*", "onnx/*", "openvino/*", ".*")
FREE_BYTES = 256 << 20  # left on the disk, as by every other fetch
_ASK_S = 5.0
_SHOWN = 10


def fetched(source: HubSource, cache_dir: Path, progress: Callable[[float], None]) -> Path:
    """The folder of this commit, or the file in it that `source.inside` names. Blocks until all is
    on this machine. Raises SourceError."""
    wanted, never = _patterns(source)
    given: dict[str, Any] = {
        "repo_id": source.repo,
        "revision": source.commit,
        "allow_patterns": wanted,
        "ignore_patterns": never,
    }
    from huggingface_hub import constants, snapshot_download  # late: it takes a second

    files = _said(source, _listed, **given)
    if files is not None:
        _complete(source, [file.filename for file in files])
        missing = sum(file.file_size or 0 for file in files if file.will_download)
        _room(source, Path(constants.HF_HUB_CACHE), missing)
        given["tqdm_class"] = _bar(missing, progress)
    place = Path(_said(source, snapshot_download, **given))
    _complete(source, _names(place))
    for file in sorted(place.rglob("*")):
        if file.is_file() and _matches(file.relative_to(place).as_posix(), wanted, never):
            _undamaged(file, cache_dir)
    return place / source.inside


def commit_of(repo: str, revision: str) -> str:
    """The commit that a branch or tag names now; "" where the hub does not say."""
    try:
        from huggingface_hub import HfApi

        return HfApi().model_info(repo, revision=revision or None, timeout=_ASK_S).sha or ""
    except Exception:  # only for a better message: whatever went wrong, there is none
        return ""


def _listed(**given: Any) -> list[Any] | None:
    """What would be fetched; None: the hub cannot be reached, so that the cache has to do."""
    from huggingface_hub import errors, snapshot_download

    try:
        files: list[Any] = snapshot_download(
            **given, dry_run=True, tqdm_class=_bar(0, lambda _: None)
        )
    except errors.DryRunError:
        return None
    return files


def _patterns(source: HubSource) -> tuple[list[str], list[str]]:
    """What is fetched, and what is not although it matches."""
    if not source.inside:
        return list(READ), list(NEVER)
    inside = [source.inside, f"{source.inside}_data*", f"{source.inside}.data*"]
    if source.inside.endswith(".xml"):
        inside.append(f"{source.inside.removesuffix('.xml')}.bin")
    return [*inside, *(f"{source.inside}/{each}" for each in READ), *TEXTS], ["*/.*", ".*"]


def _matches(name: str, wanted: Iterable[str], never: Iterable[str]) -> bool:
    def any_of(patterns: Iterable[str]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    return any_of(wanted) and not any_of(never)


def _names(place: Path) -> list[str]:
    return [file.relative_to(place).as_posix() for file in place.rglob("*") if file.is_file()]


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
    except errors.GatedRepoError:
        why = "is gated: accept its terms on its page, and set HF_TOKEN where the replica runs"
    except errors.RepositoryNotFoundError:
        why = "does not exist on the hub, or is private: then set HF_TOKEN where the replica runs"
    except errors.RevisionNotFoundError:
        why = "is not on the hub: the model has no such commit"
    except (errors.LocalEntryNotFoundError, errors.IncompleteSnapshotError) as error:
        offline = isinstance(error.__cause__, errors.OfflineModeIsEnabled)
        reached = (
            "HF_HUB_OFFLINE is set" if offline else f"the hub cannot be reached ({_end(error)})"
        )
        why = f"is not complete on this machine, and {reached}"
    except Exception as error:  # the library passes on whatever its HTTP client raises
        why = f"cannot be fetched: {_end(error)}"
    raise SourceError(f"{source} {why}")


def _end(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


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
    """Compares a file with its name in the cache: its SHA-256, or Git's own digest of it."""
    name = file.resolve().name
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
