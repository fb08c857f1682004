"""The outcome of a scenario: how many requests were in time, how fast, how fair, by tenant.

`Summary` counts while a run goes on, in memory that does not grow with the run. Simulator and load
generator fill in the same class and print the same object. Every try counts as a request: a caller
that is refused and tries again has offered two. A request counts if it was meant to be sent in the
measured time. Latencies are those of answered requests. Times are seconds from the start of the
warm-up, and ascend.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtests.results.fairness import Entitlement, Fairness
from loadtests.results.latency_histogram import LatencyHistogram
from loadtests.results.time_series import TimeSeries


@dataclass(slots=True)
class Group:
    """The outcomes of a group of requests."""

    offered: int = 0
    in_slo: int = 0
    rejected: int = 0  # refused because of load or limits
    reasons: Counter[str] = field(default_factory=Counter)  # of requests without an answer
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    wait: LatencyHistogram = field(default_factory=LatencyHistogram)
    # Of generations: time to the first token, and of each token after it.
    first: LatencyHistogram = field(default_factory=LatencyHistogram)
    per_token: LatencyHistogram = field(default_factory=LatencyHistogram)
    cost_s: float = 0.0  # of the answered requests; see `fairness`

    @property
    def in_slo_share(self) -> float:
        """Share of the offered requests that were in time, 0..1; 1 if none was offered."""
        return self.in_slo / self.offered if self.offered else 1.0

    def add(self, ending: Ending) -> None:
        self.offered += 1
        if ending.latency_s is None:
            self.reasons[ending.reason] += 1
            self.rejected += ending.refused
            return
        self.latency.add(ending.latency_s)
        if ending.wait_s is not None:
            self.wait.add(ending.wait_s)
        if ending.first_s is not None:
            self.first.add(ending.first_s)
        if ending.per_token_s > 0.0:
            self.per_token.add(ending.per_token_s)
        self.in_slo += ending.in_slo
        self.cost_s += ending.cost_s

    def merge(self, other: Group) -> None:
        self.offered += other.offered
        self.in_slo += other.in_slo
        self.rejected += other.rejected
        self.reasons += other.reasons
        self.latency.merge(other.latency)
        self.wait.merge(other.wait)
        self.first.merge(other.first)
        self.per_token.merge(other.per_token)
        self.cost_s += other.cost_s

    def as_json(self) -> dict[str, Any]:
        return {
            "offered": self.offered,
            "in_slo": self.in_slo_share,
            "rejected": self.rejected,
            "answered": self.latency.total,
            "reasons": dict(sorted(self.reasons.items())),
            "p50_ms": _ms(self.latency.percentile_s(50)),
            "p90_ms": _ms(self.latency.percentile_s(90)),
            "p99_ms": _ms(self.latency.percentile_s(99)),
            "max_ms": _ms(self.latency.max_s if self.latency.total else None),
            "wait_p99_ms": _ms(self.wait.percentile_s(99)),
            **(self._tokens_as_json() if self.first.total else {}),
            "cost_s": round(self.cost_s, 6),
        }

    def _tokens_as_json(self) -> dict[str, Any]:
        return {
            f"{name}_p{percent}_ms": _ms(times.percentile_s(percent))
            for name, times in (("first", self.first), ("per_token", self.per_token))
            for percent in (50, 90, 99)
        }


@dataclass(slots=True)
class Ending:
    """How one request ended; nobody changes it. `latency_s`: None when it was not answered, for
    `reason`. `wait_s`: until a device began with it; None when nobody knows. `first_s`: of a
    generation, until its first token, which is what was due; `per_token_s`: each one after it."""

    tenant: str
    sent_s: float
    length: int
    slo_s: float
    cost_s: float
    latency_s: float | None = None
    wait_s: float | None = None
    reason: str = ""
    refused: bool = False
    first_s: float | None = None
    per_token_s: float = 0.0

    @property
    def in_slo(self) -> bool:
        due_s = self.latency_s if self.first_s is None else self.first_s
        return self.latency_s is not None and due_s is not None and due_s <= self.slo_s


@dataclass(slots=True)
class MeasuredBatch:
    """One that a device has finished; `copy`: of another that was under way. `paid`: device seconds
    by tenant, where that is known."""

    rows: int
    tokens: int
    padded_tokens: int
    service_s: float
    copy: bool = False
    paid: Sequence[tuple[str, float]] = ()


@dataclass(slots=True)
class DeviceWork:
    """What devices did in the measured time, in batches, tokens and seconds."""

    batches: int = 0
    rows: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    busy_s: float = 0.0
    longest_s: float = 0.0
    copies: int = 0
    copied_s: float = 0.0

    def add(self, batch: MeasuredBatch) -> None:
        self.batches += 1
        self.rows += batch.rows
        self.tokens += batch.tokens
        self.padded_tokens += batch.padded_tokens
        self.busy_s += batch.service_s
        self.longest_s = max(self.longest_s, batch.service_s)
        if batch.copy:
            self.copies += 1
            self.copied_s += batch.service_s

    @property
    def padding_ratio(self) -> float:
        """Share of what devices worked on that was padding, 0..1."""
        return 1.0 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0

    @property
    def hedge_ratio(self) -> float:
        """Copies over first batches."""
        first = self.batches - self.copies
        return self.copies / first if first else 0.0

    @property
    def extra_work(self) -> float:
        """Seconds spent on copies over seconds spent on first batches."""
        first_s = self.busy_s - self.copied_s
        return self.copied_s / first_s if first_s > 0.0 else 0.0


class Summary:
    """`edges`: ascending upper bounds of the length intervals that are told apart; a longer length
    counts with the last. `begin_s`, `end_s`: the measured time."""

    def __init__(
        self,
        claims: Mapping[str, Entitlement],
        edges: tuple[int, ...],
        begin_s: float,
        end_s: float,
    ) -> None:
        self.work = DeviceWork()
        self.device_s: dict[str, float] = {}  # by tenant
        self.retries = 0
        self.time_series = TimeSeries(claims, begin_s, end_s)
        self.fairness = Fairness(claims, begin_s, end_s)
        self._edges = edges
        self._cells = {name: tuple(Group() for _ in edges) for name in claims}

    # -- what happens

    def sent(self, tenant: str, at_s: float, cost_s: float, attempt: int = 1) -> None:
        self.fairness.came(tenant, at_s, cost_s)
        self.time_series.sent(tenant, at_s)
        if attempt > 1 and self.time_series.covers(at_s):
            self.retries += 1

    def ended(self, ending: Ending, at_s: float) -> None:
        tenant, cost_s = ending.tenant, ending.cost_s
        if ending.latency_s is None:
            self.fairness.gone(tenant, at_s, cost_s)
            self.time_series.ended(tenant, at_s, 0.0)
        else:
            self.fairness.served(tenant, at_s, cost_s)
            self.time_series.ended(tenant, at_s, cost_s)
        if self.time_series.covers(ending.sent_s):
            place = min(bisect_left(self._edges, ending.length), len(self._edges) - 1)
            self._cells[tenant][place].add(ending)
            if ending.in_slo:
                self.time_series.in_slo(tenant, ending.sent_s)

    def batch(self, batch: MeasuredBatch, at_s: float) -> None:
        self.fairness.batch(at_s)
        if self.time_series.covers(at_s):
            self.work.add(batch)
            for tenant, seconds in batch.paid:
                self.device_s[tenant] = self.device_s.get(tenant, 0.0) + seconds

    def finish(self, at_s: float) -> None:
        """Nothing more will come."""
        self.fairness.finish(at_s)
        self.time_series.finish()

    # -- what it came to

    def total(self) -> Group:
        return _merged(group for cells in self._cells.values() for group in cells)

    def tenants(self) -> dict[str, Group]:
        return {name: _merged(cells) for name, cells in self._cells.items()}

    def buckets(self) -> dict[int, Group]:
        """By upper bound."""
        columns = zip(*self._cells.values(), strict=True)
        return {edge: _merged(cells) for edge, cells in zip(self._edges, columns, strict=True)}

    def cell(self, tenant: str, edge: int) -> Group:
        return self._cells[tenant][self._edges.index(edge)]

    def as_json(self) -> dict[str, Any]:
        """`in_slo` are shares of what was offered, 0..1; `offered`, `rejected` count requests."""
        total, work = self.total(), self.work
        seconds = self.time_series.end_s - self.time_series.begin_s
        return {
            **total.as_json(),
            "jain": self.fairness.min_jain,
            "padding_ratio": work.padding_ratio,
            "hedge_ratio": work.hedge_ratio,
            "extra_work": work.extra_work,
            "retries": self.retries,
            "in_slo_per_s": total.in_slo / seconds,
            "seconds": seconds,
            "batches": work.batches,
            "busy_s": round(work.busy_s, 6),
            "longest_batch_ms": _ms(work.longest_s),
            "tenants": {
                name: group.as_json() | {"device_s": round(self.device_s.get(name, 0.0), 6)}
                for name, group in self.tenants().items()
            },
            "buckets": {str(edge): group.as_json() for edge, group in self.buckets().items()},
            "time_series": self.time_series.as_json(),
        }


def _merged(groups: Iterable[Group]) -> Group:
    whole = Group()
    for group in groups:
        whole.merge(group)
    return whole


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)
