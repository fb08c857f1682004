"""Does a loaded model answer with finite numbers at all?

A few rows of the shortest and the longest bucket are drawn, as for a comparison. If none of the
answers to them is finite the model is broken (weights that are NaN, a precision that overflows) and
does not start. A model that fails on drawn rows, or answers some of them, is not judged, because
drawn rows may be no input that it is meant for. Nothing is compared.
"""

from __future__ import annotations

import numpy as np

from deployments.replica.finite import non_finite_rows
from deployments.replica.verify.comparison import NotAccepted
from deployments.replica.verify.samples import batch_of, batches, drawn, intervals
from runtimes.errors import RuntimeFault
from runtimes.types import Runtime, RuntimeSettings

_EACH = 2  # rows of a bucket: its shortest and its longest


def refuse_non_finite(settings: RuntimeSettings, runtime: Runtime) -> None:
    """Raises `NotAccepted` if no drawn row gets a finite answer."""
    limits = runtime.limits()
    among = intervals(limits, settings.edges)
    among = tuple(dict.fromkeys((among[0], among[-1])))
    samples = drawn(limits, among, _EACH * len(among), np.random.default_rng(0))
    try:
        for _, places in batches(samples, among, settings.max_size, settings.max_tokens):
            batch = batch_of(limits, [samples[place] for place in places])
            if len(non_finite_rows(runtime.run(batch).outputs)) < batch.rows:
                return
    except RuntimeFault:
        return
    raise NotAccepted(
        f"not one of {len(samples)} drawn inputs has a finite answer: all hold NaN or infinity. "
        "Where that is right, say allow_non_finite: true"
    )
