"""The rows that both sides of a comparison run: some of every length, the longest among them.

A sample is one row of every input that must be given. Drawn samples are spread evenly over the
length buckets, with the shortest and the longest row of each, and ids evenly over the model's
table. So a fault that shows at one length only, or for one token only, may be met. Values of other
inputs are drawn too: floating-point ones from a normal distribution, whole numbers from a few.

Everything follows from the seed. `sample_file` reads samples from a file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deployments.replica.verify.agreement import Interval
from runtimes import warmup
from runtimes.datatypes import DTYPES
from runtimes.types import Batch, Limits, Ragged, TensorSpec

LEAST = 200  # samples of a verdict
_BYTES = 256  # values of an 8-bit number
_UNKNOWN_IDS = 2  # values drawn for a whole number that indexes nothing known: a mask, a token type

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """One row."""

    inputs: Mapping[str, Array]  # one array an input, without the batch axis
    length: int  # tokens; 1 for rows without lengths
    drawn: bool = True  # made here, rather than given by the user


def intervals(limits: Limits, edges: Sequence[int]) -> tuple[Interval, ...]:
    """The length buckets, shortest first. Rows without lengths have one bucket; rows whose shape
    decides their length have one for each length."""
    if limits.row_shapes is not None:
        return tuple(Interval(length, length) for length in limits.row_shapes.lengths)
    if limits.length_input is None:
        return (Interval(0, 0),)
    longest = limits.max_length or max(edges)
    tops = sorted({min(edge, longest) for edge in edges} | {longest})
    bottoms = [1, *(top + 1 for top in tops[:-1])]
    return tuple(Interval(*ends) for ends in zip(bottoms, tops, strict=True))


def interval_of(length: int, among: Sequence[Interval]) -> Interval:
    """The bucket that a row of this length falls into."""
    if not among[-1].longest:
        return among[-1]
    return among[min(bisect_left([each.longest for each in among], length), len(among) - 1)]


def drawn(
    limits: Limits, among: Sequence[Interval], count: int, rng: np.random.Generator
) -> list[Sample]:
    """At least `count` samples: at least two a bucket; what does not divide goes to the longest."""
    each, more = divmod(count, len(among))
    samples = []
    for interval in among:
        wanted = max(2, each) + (more if interval is among[-1] else 0)
        lengths = _lengths(interval, wanted, rng)
        samples += [Sample(_row(limits, length, rng), length) for length in lengths]
    return samples


def completed(
    given: Sequence[Sample], limits: Limits, among: Sequence[Interval], rng: np.random.Generator
) -> list[Sample]:
    """The given samples, and drawn ones for buckets that none of them falls into."""
    met = {interval_of(sample.length, among) for sample in given}
    missing = [interval for interval in among if interval not in met]
    share = max(2, LEAST // (2 * len(among)))
    more = drawn(limits, missing, share * len(missing), rng) if missing else []
    return [*given, *more]


def batches(
    samples: Sequence[Sample], among: Sequence[Interval], max_size: int, max_tokens: int
) -> Iterator[tuple[Interval, list[int]]]:
    """Indices into `samples`, bucket by bucket, in batches as large as the model would get."""
    by_bucket: dict[Interval, list[int]] = {interval: [] for interval in among}
    for place, sample in enumerate(samples):
        by_bucket[interval_of(sample.length, among)].append(place)
    for interval, places in by_bucket.items():
        size = max(1, min(max_size, max_tokens // max(1, interval.longest)))
        for start in range(0, len(places), size):
            yield interval, places[start : start + size]


def batch_of(limits: Limits, samples: Sequence[Sample]) -> Batch:
    """The samples as rows of one batch."""
    specs = {spec.name: spec for spec in limits.inputs}
    inputs = {}
    for name in samples[0].inputs:
        rows = [sample.inputs[name] for sample in samples]
        data = np.concatenate([row.reshape(-1) for row in rows])
        inputs[name] = Ragged(specs[name].datatype, data, tuple(row.shape for row in rows))
    lengths = np.array([sample.length for sample in samples], np.int64)
    return Batch(len(samples), lengths, inputs)


def _lengths(interval: Interval, count: int, rng: np.random.Generator) -> list[int]:
    if not interval.longest:
        return [1] * count
    others = rng.integers(interval.shortest, interval.longest + 1, count - 2)
    return [interval.longest, interval.shortest, *others.tolist()]


def _row(limits: Limits, length: int, rng: np.random.Generator) -> dict[str, Array]:
    limits = warmup.of_length(limits, length)
    return {
        spec.name: _values(spec, limits, length, rng)
        for spec in limits.inputs
        if spec.name not in limits.optional_inputs
    }


def _values(spec: TensorSpec, limits: Limits, length: int, rng: np.random.Generator) -> Array:
    axis = limits.length_axis if limits.length_input else 0
    # As in the warm-up: a dynamic axis that is not the length has size 1.
    shape = tuple(
        size if size >= 0 else (length if at == axis else 1)
        for at, size in enumerate(spec.shape[1:], start=1)
    )
    dtype = DTYPES[spec.datatype]
    if spec.datatype == "BYTES":
        made = np.empty(shape, object)
        made[...] = f"text {rng.integers(1_000_000)}".encode()
        return made
    if spec.datatype == "BOOL":
        return rng.integers(0, 2, shape).astype(dtype)
    if "INT" in spec.datatype:
        few = _BYTES if dtype.itemsize == 1 else _UNKNOWN_IDS
        bound = limits.id_bounds.get(spec.name, few)
        return rng.integers(0, min(bound, np.iinfo(dtype).max), shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)
