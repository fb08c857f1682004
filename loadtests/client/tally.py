"""What came of a load: answers of each kind, how fast, at what cost to the client.

A `LoadTally` counts while a load runs; only what ends inside its window [begin, end] is counted
(open loop: what was meant to be sent in it), so that warm-up and drain leave no trace. `LoadResult`
is what it was worth: rates a second, latencies in milliseconds, the client's own CPU. An answer is
ok when its status is 2xx; latencies are those of ok answers alone; misbehaving requests stand
apart.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(slots=True)
class LoadTally:
    """Times are `perf_counter` seconds. `weight` is what rates of work are counted in (tokens)."""

    begin: float
    end: float = math.inf
    by_arrival: bool = False
    latencies_s: array[float] = field(default_factory=lambda: array("d"))
    lags_s: array[float] = field(default_factory=lambda: array("d"))
    weight: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    mischief: Counter[str] = field(default_factory=Counter)

    def open_at(self, at: float) -> bool:
        return self.begin <= at <= self.end

    def answered(self, now: float, since: float, status: int, weight: int) -> None:
        if not self.begin <= (since if self.by_arrival else now) <= self.end:
            return
        if 200 <= status < 300:
            self.latencies_s.append(now - since)
            self.weight += weight
        else:
            self.errors[f"status {status}"] += 1

    def failed(self, now: float, since: float, kind: str) -> None:
        if self.open_at(since if self.by_arrival else now):
            self.errors[kind] += 1

    def misbehaved(self, now: float, kind: str) -> None:
        if self.open_at(now):
            self.mischief[kind] += 1


@dataclass(frozen=True, slots=True)
class LoadResult:
    """`latencies_ms`: float64 [ok], unordered. `lags_ms`: open loop, by how much requests were
    sent late."""

    seconds: float
    latencies_ms: np.ndarray[Any, Any]
    weight: int
    errors: dict[str, int]
    mischief: dict[str, int]
    client_cpu_s: float
    lags_ms: np.ndarray[Any, Any]

    @classmethod
    def of(cls, tally: LoadTally, seconds: float, client_cpu_s: float) -> LoadResult:
        return cls(
            seconds=seconds,
            latencies_ms=np.array(tally.latencies_s) * 1e3,
            weight=tally.weight,
            errors=dict(tally.errors),
            mischief=dict(tally.mischief),
            client_cpu_s=client_cpu_s,
            lags_ms=np.array(tally.lags_s) * 1e3,
        )

    @property
    def ok(self) -> int:
        return int(self.latencies_ms.size)

    @property
    def failed(self) -> int:
        return sum(self.errors.values())

    @property
    def answers(self) -> int:
        return self.ok + self.failed + sum(self.mischief.values())

    @property
    def rate(self) -> float:
        """Ok answers a second."""
        return self.ok / self.seconds if self.seconds else 0.0

    @property
    def weight_rate(self) -> float:
        return self.weight / self.seconds if self.seconds else 0.0

    @property
    def cpu_us(self) -> float:
        """The client's own CPU a request, microseconds."""
        return self.client_cpu_s / self.answers * 1e6 if self.answers else math.nan

    def latency_ms(self, percent: float) -> float:
        return float(np.percentile(self.latencies_ms, percent)) if self.ok else math.nan

    @property
    def p50_ms(self) -> float:
        return self.latency_ms(50)

    @property
    def p99_ms(self) -> float:
        return self.latency_ms(99)

    def lag_ms(self, percent: float) -> float:
        return float(np.percentile(self.lags_ms, percent)) if self.lags_ms.size else 0.0

    def within(self, limit_ms: float) -> float:
        """The share of all requests that were answered ok within the limit."""
        counted = self.ok + self.failed
        return float((self.latencies_ms <= limit_ms).sum()) / counted if counted else 0.0

    def summary(self) -> dict[str, Any]:
        return {
            "seconds": round(self.seconds, 3),
            "ok": self.ok,
            "errors": self.errors,
            "rate": round(self.rate, 1),
            "weight_rate": round(self.weight_rate, 1),
            "p50_ms": round(self.latency_ms(50), 3),
            "p90_ms": round(self.latency_ms(90), 3),
            "p99_ms": round(self.latency_ms(99), 3),
            "max_ms": round(self.latency_ms(100), 3),
            "client_cpu_us": round(self.cpu_us, 1),
            "lag_p99_ms": round(self.lag_ms(99), 3),
            "mischief": self.mischief,
        }
