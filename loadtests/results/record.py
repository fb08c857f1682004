"""The record of a load test: one JSON object that later runs can be compared with.

It has everything that tables, reports and comparisons show, and what is needed to repeat the run:
scenario, target, machine, versions. Latencies are stored as histograms, so that percentiles of
parts and of the whole are computed and never averaged. Times are seconds from the start of the
measured time unless a name says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadtests.results.latency_histogram import LatencyHistogram

FORMAT = 1


class RecordError(ValueError):
    """The file is no record, or one of a format that this version does not read."""


@dataclass(slots=True)
class TenantLengthStats:
    """One tenant's requests of one length interval."""

    offered: int = 0
    in_slo: int = 0
    rejected: int = 0  # refused because of load or limits
    retries: int = 0
    tokens_in: int = 0
    tokens_out: int = 0  # of streams
    # Requests without an answer, by kind: `503`, `429`, `timeout`, `connect` …
    reasons: dict[str, int] = field(default_factory=dict)
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    # Time in the server's queue, as its answers say.
    wait: LatencyHistogram = field(default_factory=LatencyHistogram)
    # Of streams: time to the first token, and of each token after it.
    first: LatencyHistogram = field(default_factory=LatencyHistogram)
    per_token: LatencyHistogram = field(default_factory=LatencyHistogram)

    def merge(self, other: TenantLengthStats) -> None:
        for name in ("offered", "in_slo", "rejected", "retries", "tokens_in", "tokens_out"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count
        for name in ("latency", "wait", "first", "per_token"):
            getattr(self, name).merge(getattr(other, name))


@dataclass(slots=True)
class Second:
    """What happened in one second: sent and answered then, and under way at its end. Percentiles
    are of requests that were meant to be sent in it; None where none was answered."""

    offered: int = 0
    answered: int = 0
    in_slo: int = 0
    rejected: int = 0
    failed: int = 0
    under_way: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None


@dataclass(slots=True)
class Client:
    """How the generator itself did. `lag`: from when a request was meant to be sent until it left;
    `cpu_us`: of processor time a request; `behind`: why the run does not count, "" when it does."""

    processes: int = 1
    connections: int = 0
    sent: int = 0
    cpu_us: float = 0.0
    lag: LatencyHistogram = field(default_factory=LatencyHistogram)
    behind: str = ""


@dataclass(slots=True)
class Record:
    """The record of one run."""

    # What reproduces the run.
    name: str
    about: str = ""
    scenario: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    protocol: str = ""
    model: str = ""
    command: str = ""
    started: str = ""
    machine: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    seconds: float = 0.0  # the measured time
    slo_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    edges: tuple[int, ...] = ()  # upper bounds of the length intervals, ascending
    # By tenant and edge.
    cells: dict[str, dict[int, TenantLengthStats]] = field(default_factory=dict)
    time_series: list[Second] = field(default_factory=list)
    batch_sizes: dict[int, int] = field(default_factory=dict)  # answers by size of their batch
    # Of answers that say their bucket.
    tokens: int = 0
    padded_tokens: int = 0
    client: Client = field(default_factory=Client)
    # (what, how, whether it held) of promises: `headrace load smoke`.
    checks: list[tuple[str, str, bool]] = field(default_factory=list)
    malformed: dict[str, int] = field(default_factory=dict)  # by status or trouble; in no cell

    def total(self) -> TenantLengthStats:
        return merged(cell for cells in self.cells.values() for cell in cells.values())

    def by_tenant(self) -> dict[str, TenantLengthStats]:
        return {name: merged(cells.values()) for name, cells in self.cells.items()}

    def by_length(self) -> dict[int, TenantLengthStats]:
        found = self.cells.values()
        return {edge: merged(c[edge] for c in found if edge in c) for edge in self.edges}

    @property
    def padding(self) -> float | None:
        """Share of what was run that was padding, 0..1; None where no answer said."""
        return 1.0 - self.tokens / self.padded_tokens if self.padded_tokens else None


def merged(cells: Iterable[TenantLengthStats]) -> TenantLengthStats:
    whole = TenantLengthStats()
    for cell in cells:
        whole.merge(cell)
    return whole


# ---- keeping -------------------------------------------------------------------------------------


def save(record: Record, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"format": FORMAT} | asdict(record), separators=(",", ":")) + "\n")


def load(path: Path) -> Record:
    """Raises RecordError."""
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {(error.strerror or '').lower()}") from None
    except ValueError:
        raise RecordError(f"{path}: is no JSON") from None
    if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
        raise RecordError(f"{path}: is no record of format {FORMAT}")
    try:
        return _record(found)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise RecordError(f"{path}: is no record: {error}") from None


def _record(found: dict[str, Any]) -> Record:
    cells = {
        tenant: {int(edge): _cell(cell) for edge, cell in row.items()}
        for tenant, row in found["cells"].items()
    }
    client = found["client"] | {"lag": _histogram(found["client"]["lag"])}
    return Record(
        **found
        | {
            "cells": cells,
            "client": Client(**client),
            "edges": tuple(found["edges"]),
            "time_series": [Second(**second) for second in found["time_series"]],
            "batch_sizes": {int(size): count for size, count in found["batch_sizes"].items()},
            "checks": [(claim, said, held) for claim, said, held in found["checks"]],
        }
    )


def _cell(found: Mapping[str, Any]) -> TenantLengthStats:
    names = ("latency", "wait", "first", "per_token")
    return TenantLengthStats(**dict(found) | {name: _histogram(found[name]) for name in names})


def _histogram(found: Mapping[str, Any]) -> LatencyHistogram:
    counts = {int(place): count for place, count in found["counts"].items()}
    return LatencyHistogram(counts, found["total"], found["max_s"])
