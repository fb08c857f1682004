"""A stored graph's inputs and outputs, seen as rows of some length.

From a graph's own inputs and outputs, and what the settings say, follow the `Limits` that a runtime
declares: which input has the length, which is the mask, what may be left out. Which axis of an
output follows the length is no guess by name or number: two batches of neighbouring lengths are
run, and the axes that grew with them are it.

It holds no arrays and runs nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from runtimes import lengths as row_lengths
from runtimes.errors import LoadError
from runtimes.graph.bert import ATTENTION_MASK, INPUT_IDS, TOKEN_TYPES
from runtimes.types import Limits, RuntimeSettings, TensorSpec

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What an opened graph says of itself; shapes as stored, -1 dynamic, axis 0 the batch.

    id_bounds: inputs that index a table, with its number of entries. max_length: what the model's
    configuration declares, None when unknown.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    id_bounds: Mapping[str, int] = field(default_factory=dict)
    max_length: int | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """`limits` as declared; `fixed_rows`: the batch size that the graph was stored with, None when
    any will do; `length_axes`: of each output, the axes that are cut to a row's length."""

    limits: Limits
    id_bounds: Mapping[str, int]
    fixed_rows: int | None = None
    pad_multiple: int = 1
    length_axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def declare(
    facts: GraphFacts, settings: RuntimeSettings, platform: str, pad_multiple: int = 1
) -> Signature:
    """Raises `LoadError` where the settings ask for what the graph lacks."""
    specs = {spec.name: spec for spec in facts.inputs}
    length_input = _length_input(specs, settings)
    mask = _mask_input(specs, settings) if length_input else None
    fixed_rows = _fixed_rows((*facts.inputs, *facts.outputs))
    limits = Limits(
        inputs=tuple(map(_any_rows, facts.inputs)),
        outputs=tuple(map(_any_rows, facts.outputs)),
        max_rows=fixed_rows,
        max_length=row_lengths.longest(settings, facts.max_length) if length_input else None,
        length_input=length_input,
        length_axis=row_lengths.axis(settings),
        mask_input=mask,
        optional_inputs=_optional(specs, length_input, mask),
        precision=settings.precision,
        platform=platform,
        id_bounds=facts.id_bounds,
    )
    return Signature(limits, facts.id_bounds, fixed_rows, pad_multiple)


def probe_lengths(limits: Limits, smallest_edge: int) -> tuple[int, int]:
    """Two neighbouring lengths that the model is meant for."""
    longer = max(2, smallest_edge)
    if limits.max_length is not None:
        longer = min(longer, limits.max_length)
    return max(1, longer - 1), longer


def with_length_axes(
    signature: Signature, lengths: tuple[int, int], shapes: tuple[list[Shape], list[Shape]]
) -> Signature:
    """The signature that knows its outputs' length axes, from two probes' output shapes."""
    axes = {}
    for spec, short, long in zip(signature.limits.outputs, *shapes, strict=True):
        pairs = list(zip(spec.shape, short, long, strict=True))
        axes[spec.name] = tuple(
            axis
            for axis, (declared, *sizes) in enumerate(pairs)
            if axis > 0 and declared == -1 and tuple(sizes) == lengths and len(set(lengths)) == 2
        )
    return replace(signature, length_axes=axes)


def _length_input(specs: Mapping[str, TensorSpec], settings: RuntimeSettings) -> str | None:
    name, axis = settings.length_input, row_lengths.axis(settings)
    if name is None:
        found = specs.get(INPUT_IDS)
        return INPUT_IDS if found and _dynamic(found, axis) else None
    if name not in specs:
        raise LoadError(f"lengths.input '{name}' is no input; the model has {', '.join(specs)}")
    if not _dynamic(specs[name], axis):
        shape = list(specs[name].shape)
        raise LoadError(f"lengths.axis {axis} of input '{name}' is not dynamic: {shape}")
    return name


def _mask_input(specs: Mapping[str, TensorSpec], settings: RuntimeSettings) -> str | None:
    name = settings.mask_input or ATTENTION_MASK
    if name in specs and len(specs[name].shape) == 2:
        return name
    if settings.mask_input:
        raise LoadError(f"lengths.mask '{name}' is no input of shape [rows, length]")
    return None


def _optional(
    specs: Mapping[str, TensorSpec], length_input: str | None, mask: str | None
) -> tuple[str, ...]:
    left_out = {mask, TOKEN_TYPES} - {length_input} if length_input else set()
    return tuple(name for name, spec in specs.items() if name in left_out and len(spec.shape) == 2)


def _fixed_rows(specs: tuple[TensorSpec, ...]) -> int | None:
    for spec in specs:
        if not spec.shape:
            raise LoadError(f"'{spec.name}' is a single number: axis 0 must be the batch")
    fixed = {spec.shape[0] for spec in specs} - {-1}
    if len(fixed) > 1:
        raise LoadError(f"axis 0 must be the batch, but it is {sorted(fixed)} at once")
    return next(iter(fixed), None)


def _any_rows(spec: TensorSpec) -> TensorSpec:
    return replace(spec, shape=(-1, *spec.shape[1:]))


def _dynamic(spec: TensorSpec, axis: int) -> bool:
    return len(spec.shape) > axis and spec.shape[axis] == -1
