"""Promises about a server, their file, and the check whether a run kept them.

A promise is one or more bounds on a record's figures, for all requests or those of one tenant or
length. It is kept if all bounds are. Percentiles are of *offered* requests: a request without an
answer counts as slower than any limit, so that refusing does not make a server fast. A bound on the
offered rate is met if no more requests are missing than chance explains (three standard
deviations).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil, sqrt
from pathlib import Path
from statistics import median
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from loadtests.results.latency_histogram import LatencyHistogram
from loadtests.results.record import Record, TenantLengthStats, merged
from loadtests.results.report_table import number
from loadtests.traffic.scenario_file import read_part
from yaml_document.section import Section, listed

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
_SCOPE = ("tenant", "length")


class Promise(Section):
    """Times and lost shares at most, all else at least."""

    tenant: str | None = Field(default=None, description="Of this one's requests alone.")
    length: int | None = Field(
        default=None, description="Of one length interval's alone, by its upper bound."
    )
    p50_ms: Positive | None = Field(default=None, description="Latency, of offered requests.")
    p90_ms: Positive | None = Field(default=None, description="The same.")
    p95_ms: Positive | None = Field(default=None, description="The same.")
    p99_ms: Positive | None = Field(default=None, description="The same.")
    first_p50_ms: Positive | None = Field(default=None, description="Until a first token.")
    first_p95_ms: Positive | None = Field(default=None, description="The same.")
    first_p99_ms: Positive | None = Field(default=None, description="The same.")
    token_p50_ms: Positive | None = Field(default=None, description="A token after the first.")
    token_p95_ms: Positive | None = Field(default=None, description="The same.")
    token_p99_ms: Positive | None = Field(default=None, description="The same.")
    in_slo: Share | None = Field(default=None, description="Answered in time, of offered.")
    answered: Share | None = Field(default=None, description="Answered, of offered.")
    rejected: Share | None = Field(default=None, description="Turned away, of offered; at most.")
    failed: Share | None = Field(
        default=None, description="Neither answered nor turned away, of offered; at most."
    )
    in_slo_per_s: Positive | None = Field(default=None, description="Answered in time.")
    answered_per_s: Positive | None = Field(default=None, description="Answered.")
    tokens_per_s: Positive | None = Field(default=None, description="Tokens that came back.")
    tokens_in_per_s: Positive | None = Field(default=None, description="Tokens that were sent.")
    offered_per_s: Positive | None = Field(
        default=None, description="The rate that all this holds at."
    )
    streams: Positive | None = Field(
        default=None, description="Under way in at least half of the seconds, in the whole run."
    )

    @model_validator(mode="after")
    def _promises_something(self) -> Promise:
        if not self.bounds():
            raise ValueError(f"promises nothing; may have {', '.join(MEASURES)}")
        return self

    def bounds(self) -> dict[str, float]:
        given = self.model_dump(exclude_none=True)
        return {name: bound for name, bound in given.items() if name not in _SCOPE}


@dataclass(frozen=True, slots=True)
class Measure:
    """`most`: whether a promise bounds it from above. `of`: None where nothing was measured."""

    name: str
    unit: str
    most: bool
    of: Callable[[TenantLengthStats, Record], float | None]

    def shown(self, value: float) -> str:
        if self.unit == "%":
            return f"{_percent(value)} %"
        shown = f"{value:,.0f}" if value == int(value) else number(value)
        return f"{shown}{self.unit}"

    def holds(self, value: float, bound: float) -> bool:
        return value <= bound if self.most else value >= bound


Check = tuple[str, str, bool]


def judge(record: Record, promises: Iterable[Promise]) -> list[Check]:
    """Each promise in words, what was measured, and whether it was kept."""
    return [_judged(record, promise) for promise in promises]


def _judged(record: Record, promise: Promise) -> Check:
    cell = _cell(record, promise)
    claims, said, held = [], [], True
    for name, bound in promise.bounds().items():
        measure = MEASURES[name]
        value = measure.of(cell, record)
        limit = "at most" if measure.most else "at least"
        claims.append(f"{measure.name} {limit} {measure.shown(bound)}")
        said.append("none" if value is None else measure.shown(value))
        held &= value is not None and measure.holds(value, _with_chance(name, bound, record))
    return ", ".join([*claims, *_scope(promise)]), ", ".join(said), held


def _cell(record: Record, promise: Promise) -> TenantLengthStats:
    return merged(
        cell
        for tenant, cells in record.cells.items()
        for edge, cell in cells.items()
        if promise.tenant in (None, tenant) and promise.length in (None, edge)
    )


def _scope(promise: Promise) -> Iterator[str]:
    if promise.tenant is not None:
        yield f"of {promise.tenant}"
    if promise.length is not None:
        yield f"of lengths up to {promise.length:,}"


def _with_chance(name: str, bound: float, record: Record) -> float:
    if name != "offered_per_s" or not record.seconds:
        return bound
    return bound - 3.0 * sqrt(bound / record.seconds)


def _percent(share: float) -> str:
    """Never rounded to all or nothing."""
    percent = share * 100
    rounded = f"{percent:.4g}"
    if rounded in ("100", "0") and share not in (0.0, 1.0):
        return f"{percent:.12g}"
    return rounded


# ---- what can be promised ------------------------------------------------------------------------


def _of_offered(part: str, percent: float, cell: TenantLengthStats, record: Record) -> float | None:
    """Milliseconds; None where more than the rest have no answer, or nothing came."""
    histogram: LatencyHistogram = getattr(cell, part)
    rank = ceil(max(cell.offered, histogram.total) * percent / 100.0)
    if not 0 < rank <= histogram.total:
        return None
    found = histogram.percentile_s((rank - 0.5) * 100.0 / histogram.total)
    return None if found is None else found * 1e3


def _of_tokens(percent: float, cell: TenantLengthStats, record: Record) -> float | None:
    found = cell.per_token.percentile_s(percent)
    return None if found is None else found * 1e3


def _part(
    count: Callable[[TenantLengthStats], int],
) -> Callable[[TenantLengthStats, Record], float | None]:
    return lambda cell, _: count(cell) / cell.offered if cell.offered else None


def _rate(
    count: Callable[[TenantLengthStats], int],
) -> Callable[[TenantLengthStats, Record], float | None]:
    return lambda cell, record: count(cell) / record.seconds if record.seconds else None


def _under_way(cell: TenantLengthStats, record: Record) -> float | None:
    return median(second.under_way for second in record.time_series) if record.time_series else None


def _failed(cell: TenantLengthStats) -> int:
    return cell.offered - cell.latency.total - cell.rejected


def _times() -> Iterator[tuple[str, Measure]]:
    for percent in (50, 90, 95, 99):
        of = partial(_of_offered, "latency", percent)
        yield f"p{percent}_ms", Measure(f"p{percent}", " ms", True, of)
    for percent in (50, 95, 99):
        first = partial(_of_offered, "first", percent)
        yield f"first_p{percent}_ms", Measure(f"first token p{percent}", " ms", True, first)
        token = partial(_of_tokens, percent)
        yield f"token_p{percent}_ms", Measure(f"time a token p{percent}", " ms", True, token)


MEASURES = {
    **dict(_times()),
    "in_slo": Measure("in time", "%", False, _part(lambda cell: cell.in_slo)),
    "answered": Measure("answered", "%", False, _part(lambda cell: cell.latency.total)),
    "rejected": Measure("rejected", "%", True, _part(lambda cell: cell.rejected)),
    "failed": Measure("failed", "%", True, _part(_failed)),
    "in_slo_per_s": Measure("in time", "/s", False, _rate(lambda cell: cell.in_slo)),
    "answered_per_s": Measure("answered", "/s", False, _rate(lambda cell: cell.latency.total)),
    "tokens_per_s": Measure("tokens back", "/s", False, _rate(lambda cell: cell.tokens_out)),
    "tokens_in_per_s": Measure("tokens sent", "/s", False, _rate(lambda cell: cell.tokens_in)),
    "offered_per_s": Measure("offered", "/s", False, _rate(lambda cell: cell.offered)),
    "streams": Measure("under way", "", False, _under_way),
}


# ---- the file ------------------------------------------------------------------------------------


class PromiseFile(Section):
    """Files are relative to this one."""

    scenario: str = Field(description="The scenario's file.")
    url: str = Field(default="", description="The server; `--url` goes before it.")
    protocol: str = Field(default="oip", description="As `--protocol` of `headrace load`.")
    adapter: str = Field(default="", description="The file of a `custom` protocol.")
    model: str = Field(default="", description="Unset, the scenario's.")
    slo_ms: Positive | None = Field(
        default=None, description="Unset, the settings file's, else the server's."
    )
    changes: Annotated[tuple[str, ...], BeforeValidator(listed)] = Field(
        default=(), description="Changes to the scenario, such as `arrivals.rate=300`."
    )
    processes: int = Field(default=1, ge=1, le=256, description="Generators.")
    promises: Annotated[tuple[Promise, ...], BeforeValidator(listed)] = Field(
        min_length=1, description="What must come of it."
    )


def load_file(path: Path) -> PromiseFile:
    """With its files' paths made whole. Raises ScenarioErrors."""
    found = read_part(path, PromiseFile, "a file of promises")
    adapter = str(path.parent / found.adapter) if found.adapter else ""
    return found.model_copy(
        update={"scenario": str(path.parent / found.scenario), "adapter": adapter}
    )


def about_nobody(
    promises: Iterable[Promise], tenants: Iterable[str], edges: Iterable[int]
) -> Iterator[str]:
    """What the promises speak of and the scenario does not have."""
    known, lengths = list(tenants), list(edges)
    for place, promise in enumerate(promises):
        if promise.tenant is not None and promise.tenant not in known:
            yield f"promises[{place}].tenant: is {promise.tenant}; must be {_one_of(known)}"
        if promise.length is not None and promise.length not in lengths:
            yield f"promises[{place}].length: is {promise.length}; must be {_one_of(lengths)}"


def _one_of(values: Iterable[object]) -> str:
    return " or ".join(map(str, values))
