"""What a row's length is, and whether a batch is what the loaded model declared (`Limits`).

The settings may name an input, an axis, a mask and a longest length; whatever they leave out is as
the model declares. What the model does not have or cannot take is a `LoadError` in the words of the
settings file, at the start and not at the first long row.

A batch is checked for names, datatypes, ranks, fixed axes, row counts and lengths, after the
gateway's check. Whatever is wrong is the caller's fault, `BadRows`, and is found before the batch
reaches the device. It takes microseconds a batch, because no values are read: the backend, which
knows the vocabulary, finds token ids that are out of range.
"""

from __future__ import annotations

import math
from dataclasses import replace

from runtimes.errors import BadRows, LoadError
from runtimes.types import (
    DTYPES,
    Batch,
    Limits,
    Ragged,
    RuntimeSettings,
    TensorSpec,
    text_length,
)


def check(batch: Batch, limits: Limits) -> None:
    """Raises `BadRows` naming the input or output and what would be right."""
    if batch.rows < 1:
        raise BadRows("a batch has at least one row")
    if limits.max_rows is not None and batch.rows > limits.max_rows:
        raise BadRows(f"{batch.rows} rows, the model takes {limits.max_rows} at most")
    specs = {spec.name: spec for spec in limits.inputs}
    for name in batch.inputs:
        if name not in specs:
            raise BadRows(f"unknown input '{name}', the model takes {', '.join(specs)}")
    for name in specs:
        if name not in batch.inputs and name not in limits.optional_inputs:
            raise BadRows(f"input '{name}' is missing")
    for name, ragged in batch.inputs.items():
        _check_rows(ragged, specs[name], batch.rows)
    _check_lengths(batch, limits)


def wanted(batch: Batch, limits: Limits) -> tuple[str, ...]:
    """The names of the outputs to answer with; raises `BadRows` for one the model lacks."""
    known = tuple(spec.name for spec in limits.outputs)
    if batch.outputs is None:
        return known
    for name in batch.outputs:
        if name not in known:
            raise BadRows(f"unknown output '{name}', the model has {', '.join(known)}")
    return batch.outputs


def _check_rows(ragged: Ragged, spec: TensorSpec, rows: int) -> None:
    if ragged.datatype != spec.datatype:
        raise BadRows(f"input '{spec.name}' is {ragged.datatype}, it must be {spec.datatype}")
    if ragged.data.dtype != DTYPES[spec.datatype]:
        raise BadRows(f"input '{spec.name}' holds {ragged.data.dtype}, not {spec.datatype}")
    if len(ragged.shapes) != rows:
        raise BadRows(f"input '{spec.name}' has {len(ragged.shapes)} rows, the batch {rows}")
    for shape in set(ragged.shapes):
        if not _fits(shape, spec.shape[1:]):
            raise BadRows(f"a row of input '{spec.name}' is {shape}, it must be {spec.shape[1:]}")
    if sum(map(math.prod, ragged.shapes)) != ragged.data.size:
        raise BadRows(f"input '{spec.name}' has {ragged.data.size} values, its shapes hold others")


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        size >= 0 and want in (-1, size) for size, want in zip(shape, wanted, strict=True)
    )


def _check_lengths(batch: Batch, limits: Limits) -> None:
    """`lengths` are those of the length input, and no row is longer than the model can take."""
    if limits.length_input is None:
        return
    lengths = lengths_of(batch.inputs[limits.length_input], limits)
    if list(batch.lengths) != lengths:
        raise BadRows(f"the batch's lengths are not those of input '{limits.length_input}'")
    if limits.max_length is not None and max(lengths) > limits.max_length:
        raise BadRows(f"a row of {max(lengths)}, the model takes {limits.max_length} at most")
    for name in (limits.mask_input, *limits.optional_inputs):
        ragged = batch.inputs.get(name) if name else None
        if ragged and ragged.shapes != batch.inputs[limits.length_input].shapes:
            raise BadRows(f"the rows of '{name}' and '{limits.length_input}' differ in shape")


def lengths_of(ragged: Ragged, limits: Limits) -> list[int]:
    """Each row's length, read at the length input."""
    if limits.length_axis == 0:
        return [text_length(text) for text in ragged.data]
    return [shape[limits.length_axis - 1] for shape in ragged.shapes]


def longest(settings: RuntimeSettings, taken: int | None) -> int | None:
    """The longest row to declare; `taken`: what the model can take, None where it does not say."""
    configured = settings.max_length
    if configured is None:
        return taken
    if taken is not None and configured > taken:
        raise LoadError(
            f"lengths.max is {configured}, the model takes {taken} at most: set lengths.max "
            f"to {taken} or less"
        )
    return configured


def axis(settings: RuntimeSettings) -> int:
    """The batch is axis 0, and a row's length is the axis after it unless the settings say."""
    return 1 if settings.length_axis is None else settings.length_axis


def settled(limits: Limits, settings: RuntimeSettings) -> Limits:
    """For a model whose length is where it is: `limits` with the settings' longest row."""
    for name, configured, own in (
        ("input", settings.length_input, limits.length_input),
        ("axis", settings.length_axis, limits.length_axis),
        ("mask", settings.mask_input, limits.mask_input),
    ):
        if configured not in (None, own):
            own_words = "which has none" if own is None else f"where it is {own}"
            raise LoadError(f"lengths.{name} is {configured} for a model {own_words}: leave it out")
    return replace(limits, max_length=longest(settings, limits.max_length))
