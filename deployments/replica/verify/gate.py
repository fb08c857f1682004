"""The gate of a starting replica: may its model serve, because it agrees with its reference?

A verdict is kept in the cache folder under everything that it depends on. The model's other
replicas, its next start, and a start that is tried again after a refusal find it there: one replica
of a host compares, the others wait for it. A refused model does not start, so that the version that
served before goes on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from deployments.replica.describe import tokenizer_bytes
from deployments.replica.verify import drawn_answers
from deployments.replica.verify.comparison import NotAccepted
from deployments.replica.verify.reference import reference_for
from deployments.replica.verify.sample_file import Reading
from deployments.replica.verify.verification import (
    VerificationOptions,
    as_json,
    of_settings,
    verify,
)
from deployments.settings.model import ModelSettings
from runtimes import calibration, catalog, fingerprint, source, staging
from runtimes.cuda.driver import gpus
from runtimes.digest import digest_of
from runtimes.types import Limits, Runtime, RuntimeSettings

LAYOUT = "3"  # of a stored verdict; raised when the same comparison may end differently
FILE = "verdict.json"


def admit(model: ModelSettings, settings: RuntimeSettings, runtime: Runtime) -> None:
    """Return if the model may serve. `runtime` is loaded from `settings`. Raises `NotAccepted` with
    the first tolerance that does not hold, or if answers are not finite; `CannotVerify` if there is
    nothing to compare with; and what loading raises."""
    if settings.source is not None:
        drawn_answers.judge(settings, runtime, allow_non_finite=model.allow_non_finite)
    if not model.accept.required:
        return
    options = replace(of_settings(model.accept), finite=not model.allow_non_finite)
    settings.progress("verifying", 0.0)

    def build(folder: Path) -> None:
        reading = Reading(tokenizer_bytes(settings.source), model.image)
        report = verify(
            settings, runtime, options, reading, lambda share: settings.progress("verifying", share)
        )
        (folder / FILE).write_text(as_json(report), encoding="utf-8")

    entry = staging.staged(
        settings.cache_dir, parts(settings, options, runtime.limits(), model), build
    )
    settings.progress("verifying", 1.0)
    _refuse(settings.name, json.loads((entry / FILE).read_text(encoding="utf-8")))


def parts(
    settings: RuntimeSettings, options: VerificationOptions, limits: Limits, model: ModelSettings
) -> list[str]:
    """All that a verdict depends on, on this host: the cache's key."""
    reference = reference_for(settings, options.against, options.artifact)
    files = [file for file in (options.file,) if file is not None]
    return [
        "verdict",
        LAYOUT,
        *_side(settings),
        *_side(reference),
        *(digest_of([file], file.parent, settings.cache_dir) for file in _contents(files)),
        *(digest_of([file], file.parent, settings.cache_dir) for file in _named_images(files)),
        limits.device,
        ", ".join(str(each) for each in gpus()),
        repr(settings.row_shapes),
        model.image.model_dump_json() if model.image is not None else "",
        json.dumps([options.count, options.seed, options.finite, asdict(options.tolerances)]),
        json.dumps([settings.edges, settings.max_size, settings.max_tokens, settings.max_length]),
        json.dumps([settings.length_input, settings.length_axis, settings.mask_input]),
        staging.processor(),
    ]


def _side(settings: RuntimeSettings) -> list[str]:
    """One side's artifact, tokeniser, backend and whatever else shapes its answers."""
    assert settings.source is not None
    artifact = source.inspect(settings.source, settings.cache_dir).digest
    tuning = json.dumps(dict(settings.options), sort_keys=True, default=str)
    version = catalog.version(settings.runtime)
    texts = str(fingerprint.tokenizer(settings.source))
    ranges = _ranges(settings)
    how = [settings.runtime, version, settings.precision, settings.task]
    return [artifact, texts, ranges, tuning, *how]


def _ranges(settings: RuntimeSettings) -> str:
    """A digest of the calibration rows; "" without any."""
    named = settings.options.get("calibration")
    if named is None:
        return ""
    file = calibration.file_of(named)
    return digest_of([file], file.parent, settings.cache_dir)


def _contents(files: Sequence[Path]) -> list[Path]:
    """The files themselves, and those in a folder."""
    found: list[Path] = []
    for file in files:
        found += sorted(file.iterdir()) if file.is_dir() else [file]
    return [file for file in found if file.is_file()]


def _named_images(files: Sequence[Path]) -> list[Path]:
    """The image files that the lines of JSONL files name."""
    found: set[Path] = set()
    for file in _contents(files):
        if file.suffix == ".jsonl":
            for line in file.read_text(encoding="utf-8").splitlines():
                found |= _images_of(line, file.parent)
    return sorted(found)


def _images_of(line: str, folder: Path) -> set[Path]:
    try:
        row = json.loads(line)
    except ValueError:
        return set()  # reading the samples reports the line
    named = row.get("image") if isinstance(row, dict) else None
    return {folder / named} if isinstance(named, str) and (folder / named).is_file() else set()


def _refuse(name: str, verdict: dict[str, object]) -> None:
    if verdict["accepted"]:
        return
    breaches = verdict["breaches"]
    assert isinstance(breaches, list)
    more = f" (and {len(breaches) - 1} more)" if len(breaches) > 1 else ""
    raise NotAccepted(
        f"not accepted against {verdict['reference']}: {breaches[0]['sentence']}{more}; "
        f"`headrace verify FILE {name}` shows all"
    )
