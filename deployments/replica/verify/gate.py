"""The gate of a starting replica: may its model serve?

A few rows of the shortest and the longest bucket are drawn. If no answer to them is finite the
model is broken and does not start; if all are the same to the last bit, a warning says so. A model
that fails on drawn rows is not judged, because they may be no input that it is meant for.

If the settings ask for it, the model is compared with its reference. A verdict is kept in the cache
folder under everything that it depends on: one replica of a host compares, the others wait for it.
A refused model does not start, so that the version that served before goes on.
"""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from deployments.replica.describe import tokenizer_bytes
from deployments.replica.device import non_finite_rows
from deployments.replica.verify.samples import Reading, batch_of, batches, drawn, intervals
from deployments.replica.verify.verification import (
    NotAccepted,
    Sameness,
    VerificationOptions,
    as_json,
    of_settings,
    reference_for,
    verify,
)
from deployments.settings.model import ModelSettings
from runtimes import calibration, catalog, fingerprint, staging
from runtimes.cuda import gpus
from runtimes.errors import RuntimeFault
from runtimes.staging import digest_of
from runtimes.types import Limits, Runtime, RuntimeSettings

LAYOUT = "3"  # of a stored verdict; raised when the same comparison may end differently
FILE = "verdict.json"
_EACH = 2  # rows of a bucket: its shortest and its longest
logger = logging.getLogger("headrace.replica")


def judge_drawn_answers(
    settings: RuntimeSettings, runtime: Runtime, *, allow_non_finite: bool = False
) -> None:
    """Raises `NotAccepted` if no drawn row gets a finite answer."""
    limits = runtime.limits()
    among = intervals(limits, settings.edges)
    among = tuple(dict.fromkeys((among[0], among[-1])))
    samples = drawn(limits, among, _EACH * len(among), np.random.default_rng(0))
    finite, sameness = allow_non_finite, Sameness()
    try:
        for _, places in batches(samples, among, settings.max_size, settings.max_tokens):
            batch = batch_of(limits, [samples[place] for place in places])
            outputs = runtime.run(batch).outputs
            finite = finite or len(non_finite_rows(outputs)) < batch.rows
            sameness.add(outputs)
            if finite and not sameness.holds:
                return
    except RuntimeFault:
        return
    if not finite:
        raise NotAccepted(
            f"not one of {len(samples)} drawn inputs has a finite answer: all hold NaN or "
            "infinity. Where that is right, say allow_non_finite: true"
        )
    logger.warning(
        "%d different drawn inputs have the same answer (output %s): are the weights the trained "
        "ones, and does the output depend on the input?",
        len(samples), ", ".join(spec.name for spec in limits.outputs),
        extra={"model": settings.name},
    )  # fmt: skip


def admit(model: ModelSettings, settings: RuntimeSettings, runtime: Runtime) -> None:
    """Return if the model may serve. `runtime` is loaded from `settings`. Raises `NotAccepted` with
    the first tolerance that does not hold, or if answers are not finite; `CannotVerify` if there is
    nothing to compare with; and what loading raises."""
    if settings.source is not None and not settings.entry:
        judge_drawn_answers(settings, runtime, allow_non_finite=model.allow_non_finite)
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
    verdict = json.loads((entry / FILE).read_text(encoding="utf-8"))
    if not verdict["accepted"]:
        breaches = verdict["breaches"]
        more = f" (and {len(breaches) - 1} more)" if len(breaches) > 1 else ""
        raise NotAccepted(
            f"not accepted against {verdict['reference']}: {breaches[0]['sentence']}{more}; "
            f"`headrace verify FILE {settings.name}` shows all"
        )


def parts(
    settings: RuntimeSettings, options: VerificationOptions, limits: Limits, model: ModelSettings
) -> list[str]:
    """All that a verdict depends on, on this host: the cache's key."""
    reference = reference_for(settings, options.against, options.artifact)
    return [
        "verdict",
        LAYOUT,
        *_side(settings),
        *_side(reference),
        *(digest_of([file], file.parent, settings.cache_dir) for file in _sample_files(options)),
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
    artifact = catalog.digest(settings.runtime, settings.source, settings.cache_dir)
    tuning = json.dumps(dict(settings.options), sort_keys=True, default=str)
    version = catalog.version(settings.runtime)
    texts, ranges = str(fingerprint.tokenizer(settings.source)), ""
    if (named := settings.options.get("calibration")) is not None:
        file = calibration.file_of(named)
        ranges = digest_of([file], file.parent, settings.cache_dir)
    how = [settings.runtime, version, settings.precision, settings.task]
    return [artifact, texts, ranges, tuning, *how]


def _sample_files(options: VerificationOptions) -> list[Path]:
    """The samples' file, or those of a recorded folder, and the images that lines of JSONL name."""
    path = options.file
    if path is None:
        return []
    files = [
        file for file in (sorted(path.iterdir()) if path.is_dir() else [path]) if file.is_file()
    ]
    images: set[Path] = set()
    for file in files:
        lines = file.read_text(encoding="utf-8").splitlines() if file.suffix == ".jsonl" else []
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):  # reading samples reports it
                images.add(file.parent / json.loads(line)["image"])
    return [*files, *sorted(image for image in images if image.is_file())]
