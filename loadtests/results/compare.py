"""How do two runs differ: by how much, for whom, and is it more than chance?

Pure: two records in; their differences, and warnings about anything else that differs, out. Record
B is measured against record A. `noise.py` decides whether a difference is more than chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp

from loadtests.results import noise
from loadtests.results.noise import Estimate
from loadtests.results.record import Record, TenantLengthStats

PERCENTS = (50.0, 95.0, 99.0)

Pair = tuple[float, float]  # of A and of B


@dataclass(frozen=True, slots=True)
class Difference:
    """`a`, `b`: shares in 0..1 or milliseconds; None where there is none. `change`: of shares, B
    less A; of times, B over A, open where too few were counted to bound it; None of nothing."""

    part: str
    what: str
    a: float | None
    b: float | None
    change: Estimate | None
    verdict: str
    is_share: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """`warnings`: what else differs. `inflations`: see `noise`."""

    a: Record
    b: Record
    tenants: tuple[Difference, ...]
    lengths: tuple[Difference, ...]
    warnings: tuple[str, ...]
    inflations: Pair


def compare(a: Record, b: Record) -> Comparison:
    inflations = noise.inflations(a, b)
    several = len({*a.cells, *b.cells}) > 1
    tenants = _all_parts(_by_tenant(a, several), _by_tenant(b, several))
    lengths = _all_parts(_by_length(a), _by_length(b))
    return Comparison(
        a,
        b,
        tuple(each for part in tenants for each in _differences(*part, inflations)),
        tuple(each for part in lengths for each in _differences(*part, inflations)),
        tuple(warnings(a, b)),
        inflations,
    )


def warnings(a: Record, b: Record) -> Iterator[str]:
    """What makes the two unlike, but for what they measured."""
    keys = _unlike(a.scenario, b.scenario)
    if a.name != b.name:
        yield f"the scenarios differ{_both(a.name, b.name)}"
    elif keys:
        yield f"the scenarios differ in {', '.join(keys)}"
    for what, one, other in (
        ("machine", a.machine, b.machine),
        ("protocol", a.protocol, b.protocol),
        ("model", a.model, b.model),
        ("SLO in ms", a.slo_ms, b.slo_ms),
        ("SLO of the first token in ms", a.ttft_ms, b.ttft_ms),
        ("SLO of further tokens in ms", a.tpot_ms, b.tpot_ms),
        ("measured time in s", a.seconds, b.seconds),
        ("number of generators", a.client.processes, b.client.processes),
    ):
        if one != other:
            yield f"the {what} differs{_both(one, other)}"
    for name in _unlike(a.versions, b.versions):
        one, other = a.versions.get(name), b.versions.get(name)
        yield f"the version of {name} differs{_both(one, other)}"


# ---- parts ---------------------------------------------------------------------------------------


def _all_parts(
    a: Mapping[str, TenantLengthStats], b: Mapping[str, TenantLengthStats]
) -> list[tuple[str, TenantLengthStats, TenantLengthStats]]:
    """In A's order, then what only B has; without what nobody asked for."""
    names = dict.fromkeys((*a, *b))
    pairs = [
        (name, a.get(name, TenantLengthStats()), b.get(name, TenantLengthStats())) for name in names
    ]
    return [pair for pair in pairs if pair[1].offered or pair[2].offered]


def _by_tenant(record: Record, several: bool) -> dict[str, TenantLengthStats]:
    return {"all": record.total()} | (record.by_tenant() if several else {})


def _by_length(record: Record) -> dict[str, TenantLengthStats]:
    return {f"up to {edge:,}": cell for edge, cell in record.by_length().items()}


def _differences(
    part: str, a: TenantLengthStats, b: TenantLengthStats, inflations: Pair
) -> Iterator[Difference]:
    yield _of_shares(part, a, b, inflations)
    for name, prefix in (("latency", ""), ("first", "first token "), ("per_token", "a token ")):
        one, other = getattr(a, name), getattr(b, name)
        if name == "latency" or one.total or other.total:
            for percent in PERCENTS:
                ends = [
                    noise.log_percentile(each, percent, inflation)
                    for each, inflation in zip((one, other), inflations, strict=True)
                ]
                yield _of_times(part, f"{prefix}p{percent:g} ms", *ends)


def _of_shares(
    part: str, a: TenantLengthStats, b: TenantLengthStats, inflations: Pair
) -> Difference:
    one, other = (
        noise.share(cell.in_slo, cell.offered, inflation)
        for cell, inflation in zip((a, b), inflations, strict=True)
    )
    change = other.less(one) if one and other else None
    values = [each.value if each else None for each in (one, other)]
    said = _verdict(change, "better", "worse")
    return Difference(part, "in time", values[0], values[1], change, said, is_share=True)


def _of_times(part: str, what: str, one: Estimate | None, other: Estimate | None) -> Difference:
    """Of logarithms of seconds."""
    a, b = (exp(each.value) * 1e3 if each else None for each in (one, other))
    apart = other.less(one) if one and other else None
    ratio = apart and Estimate(exp(apart.value), exp(apart.low), exp(apart.high))
    return Difference(part, what, a, b, ratio, _verdict(apart, "slower", "faster"))


def _verdict(apart: Estimate | None, more: str, less: str) -> str:
    if apart is None or (apart.is_noise and apart.is_open):
        return "too few to say"
    if apart.is_noise:
        return "within noise"
    return more if apart.value > 0 else less


def _unlike(a: Mapping[str, object], b: Mapping[str, object]) -> list[str]:
    return sorted(key for key in {*a, *b} if a.get(key) != b.get(key))


def _both(a: object, b: object) -> str:
    one, other = ("none" if value in (None, "") else str(value) for value in (a, b))
    return f" (A: {one}; B: {other})"
