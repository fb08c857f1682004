"""Wraps a backend so that only rows of equal shape run together.

To a convolution, an image that is padded to another's size is a different image, so its answer
would depend on the other rows of its batch. This wrapper runs a batch in groups of equal shapes,
each as the backend would run it alone, and puts the answers back into the batch's order. With a
scheduler that batches by length nearly every batch is one group, but the answers do not rely on
that. The wrapped backend sees no lengths except those that its own limits declare.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from runtimes import rows, warmup
from runtimes.errors import BadRows, LoadError, Unhealthy
from runtimes.types import (
    Batch,
    Limits,
    Ragged,
    Result,
    RowShapes,
    Runtime,
    RuntimeSettings,
    StageTimes,
)

Shape = tuple[int, ...]


class EqualShapes:
    """`Runtime` around another one. `settings.row_shapes` says the shapes."""

    def __init__(self, inner: Runtime, settings: RuntimeSettings) -> None:
        if settings.row_shapes is None:
            raise ValueError("the settings name no shapes of rows")
        self._inner, self._settings = inner, settings
        self._wanted = settings.row_shapes
        self._limits: Limits | None = None
        self._last = warmup.LastRun()

    def load(self) -> None:
        """Raises `LoadError` also where the model's input has no place for such rows."""
        self._inner.load()
        try:
            self._limits = _seen(self._inner.limits(), self._wanted)
        except LoadError:
            self.close()
            raise

    def warm(self) -> None:
        seconds = self._settings.options.get("warm_s", warmup.WARM_S)
        warmup.warm(self._settings, self.limits(), self.run, float(seconds))

    def limits(self) -> Limits:
        if self._limits is None:
            raise Unhealthy("the model is not loaded")
        return self._limits

    def run(self, batch: Batch) -> Result:
        limits = self.limits()
        assert limits.row_shapes is not None
        rows.check(batch, limits)
        name, known = limits.row_shapes.input or "", limits.row_shapes.shapes
        allowed, by_shape = set(known), dict[Shape, list[int]]()
        pairs = zip(batch.lengths.tolist(), batch.inputs[name].shapes, strict=True)
        for row, (length, shape) in enumerate(pairs):
            if (length, shape) not in allowed:
                raise BadRows(
                    f"row {row} of input '{name}' is {shape} of length {length}, known are "
                    f"{', '.join(str(shape) for _, shape in known)}"
                )
            by_shape.setdefault(shape, []).append(row)
        groups = list(by_shape.values())
        self._last.failed()  # until all have answered
        results = [self._inner.run(self._part(batch, group)) for group in groups]
        self._last.answered()
        tokens = int(batch.lengths.sum())
        if len(groups) == 1:
            return replace(results[0], padded_tokens=tokens)
        back = np.argsort([row for group in groups for row in group]).tolist()
        outputs = {
            name: Ragged.joined([result.outputs[name] for result in results]).picked(back)
            for name in results[0].outputs
        }
        return Result(outputs, StageTimes.total(results), tokens)

    def health(self) -> None:
        """After a failed batch the smallest must run: a backend would try one of no real shape."""
        if self._last.check(self._run_smallest):
            self._inner.health()

    def _run_smallest(self) -> None:
        self.run(warmup.batch(self.limits(), 1, self._wanted.lengths[0]))

    def close(self) -> None:
        self._limits = None
        self._inner.close()

    def _part(self, batch: Batch, group: list[int]) -> Batch:
        own = self._inner.limits()
        part = batch if len(group) == batch.rows else batch.picked(group)
        if own.length_input is None:
            return replace(part, lengths=np.ones(len(group), np.int64))
        shape = part.inputs[own.length_input].shapes[0]
        return replace(part, lengths=np.full(len(group), shape[own.length_axis - 1], np.int64))


def _seen(limits: Limits, wanted: RowShapes) -> Limits:
    """The inner limits as callers of the wrapper see them."""
    rank = 1 + len(wanted.shapes[0][1])
    ranked = {spec.name: spec for spec in limits.inputs if len(spec.shape) == rank}
    known = ", ".join(f"'{spec.name}' {list(spec.shape)}" for spec in limits.inputs)
    if wanted.input is None and len(ranked) != 1:
        raise LoadError(f"the model must have one input of {rank} axes; it takes {known}")
    if wanted.input is not None and wanted.input not in ranked:
        raise LoadError(f"'{wanted.input}' is no input of {rank} axes; the model takes {known}")
    spec = ranked[wanted.input or next(iter(ranked))]
    for _, shape in wanted.shapes:
        if not all(want in (-1, size) for size, want in zip(shape, spec.shape[1:], strict=True)):
            raise LoadError(
                f"the model's input '{spec.name}' takes rows of {list(spec.shape[1:])}, the "
                f"settings make rows of {list(shape)}: layout, channels or size differ"
            )
    others = {each.name for each in limits.inputs} - {spec.name, *limits.optional_inputs}
    if others:
        raise LoadError(f"the model also needs {', '.join(sorted(others))}, which nothing makes")
    return replace(
        limits,
        max_length=wanted.lengths[-1],
        length_input=None,
        mask_input=None,
        row_shapes=replace(wanted, input=spec.name),
    )
