"""Are a loaded model's answers to a few drawn inputs finite, and do they differ at all?

A few rows of the shortest and the longest bucket are drawn, as for a comparison. If none of the
answers to them is finite the model is broken (weights that are NaN, a precision that overflows) and
does not start. If all are the same to the last bit, a warning says so: weights that are missing, or
a softmax over one class, answer like that. A model that fails on drawn rows, or answers some of
them, is not judged, because drawn rows may be no input that it is meant for. Nothing is compared
with a reference.
"""

from __future__ import annotations

import logging

import numpy as np

from deployments.replica.finite import non_finite_rows
from deployments.replica.verify.comparison import NotAccepted, Sameness
from deployments.replica.verify.samples import batch_of, batches, drawn, intervals
from runtimes.errors import RuntimeFault
from runtimes.types import Runtime, RuntimeSettings

_EACH = 2  # rows of a bucket: its shortest and its longest
logger = logging.getLogger("headrace.replica")


def judge(settings: RuntimeSettings, runtime: Runtime, *, allow_non_finite: bool = False) -> None:
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
