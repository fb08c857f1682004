"""Models on virtual time: gateways that count, replicas that start, serve and go, a core.

Work is fluid: a hot replica does `speed` of it a second, what exceeds two seconds of all of them is
refused. Every step checks what may never happen: a target out of bounds, or fewer while one starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from autoscaling.autoscaler import Autoscaler
from autoscaling.settings import ModelTerms, ScalingSettings
from autoscaling.types import (
    Decisions,
    DemandReading,
    GroupReading,
    GroupTarget,
    ModelDecision,
    Reason,
    StartReading,
    State,
)

Rate = Callable[[float], float]


@dataclass
class FakeGroup:
    """places: replicas that can be placed; the others wait."""

    hot: int
    target: int
    places: float = float("inf")
    speed: float = 1.0
    starting: list[float] = field(default_factory=list)
    draining: list[float] = field(default_factory=list)
    unplaced: list[float] = field(default_factory=list)

    def step(self, start_s: float, now: float) -> None:
        self.hot += sum(ready <= now for ready in self.starting)
        self.starting = [ready for ready in self.starting if ready > now]
        self.draining = [gone for gone in self.draining if gone > now]
        while self.unplaced and self._held() < self.places:
            self.unplaced.pop(0)
            self.starting.append(now + start_s)

    def _held(self) -> int:
        return self.hot + len(self.starting) + len(self.draining)

    def order(self, target: int, start_s: float, drain_s: float, now: float) -> None:
        more = target - self.target
        for _ in range(more):
            if self._held() < self.places:
                self.starting.append(now + start_s)
            else:
                self.unplaced.append(now)
        for _ in range(-more):
            if self.unplaced:
                self.unplaced.pop()
            elif self.starting:
                self.starting.pop()
            else:
                self.hot -= 1
                self.draining.append(now + drain_s)
        self.target = target

    def reading(self, name: str, now: float) -> GroupReading:
        waited = now - self.unplaced[0] if self.unplaced else 0.0
        return GroupReading(
            name, self.target, self.hot, len(self.starting) + len(self.unplaced),
            len(self.draining), self.speed, batch_s=0.05, batch_p99_s=0.1, batch_scv=0.1,
            unplaced_s=waited, missing="GPU: 1" if waited else "",
        )  # fmt: skip


@dataclass
class FakeModel:
    groups: dict[str, FakeGroup]
    rate: Rate
    offered: dict[str, float]
    requests: dict[str, int]
    squares: float = 0.0
    backlog: float = 0.0
    running: int = 0
    total: float = 0.0
    refused: float = 0.0
    # Share of the work that is rows longer than a length, by that length.
    longer: dict[int, float] = field(default_factory=dict)
    longer_offered: dict[tuple[str, int], float] = field(default_factory=dict)


class FakeCluster:
    """request_s: mean work of a request, exponentially distributed. start_s: measured already."""

    def __init__(
        self, *models: ModelTerms, start_s: float = 30.0, request_s: float = 0.05, hot: int = 1,
        gateways: tuple[str, ...] = ("gateway-1",), seed: int = 1,
        settings: ScalingSettings | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings or ScalingSettings({each.name: each for each in models})
        self.now = 1_000.0
        self.start_s, self.request_s, self.drain_s = start_s, request_s, 2.0
        self.gateways = list(gateways)
        self.silent: set[str] = set()
        self.blind = False
        self.hours = 0.0
        self.log: list[tuple[float, str, ModelDecision]] = []
        self.changes: list[tuple[float, str, int, int]] = []
        self.core = Autoscaler(self.settings, self.now)
        self._random = Random(seed)
        self.models = {}
        for name, terms in self.settings.models.items():
            groups = {
                group.name: FakeGroup(max(group.min, min(hot, group.max)), 0)
                for group in terms.groups
            }
            for group in groups.values():
                group.target = group.hot
            counters = dict.fromkeys(gateways, 0.0)
            self.models[name] = FakeModel(
                groups, lambda t: 0.0, counters, dict.fromkeys(gateways, 0)
            )
            self.core.record_start(StartReading(name, "", State.COLD, start_s))

    def run(self, seconds: float, rate: Rate | float | None = None, model: str = "m") -> None:
        """One second after the other; rate: of work a second by seconds since now."""
        if rate is not None:
            self.models[model].rate = rate if callable(rate) else lambda t: rate
        began = self.now
        for _ in range(int(seconds)):
            self.now += 1.0
            for name, each in self.models.items():
                self._serve(name, each, self.now - began)
            self.decide()

    def decide(self) -> Decisions:
        decided = self.core.decide(self.now)
        for name, decision in decided.models.items():
            self.log.append((self.now, name, decision))
            self._obey(name, decision)
        return decided

    def _serve(self, name: str, model: FakeModel, since: float) -> None:
        hot = 0.0
        for group in model.groups.values():
            group.step(self.start_s, self.now)
            hot += group.hot * group.speed
            self.hours += (group.hot + len(group.starting)) / 3600.0
        count, work = self._requests(model.rate(since))
        model.total += work
        model.backlog += work
        model.backlog -= min(model.backlog, hot)
        over = max(0.0, model.backlog - 2.0 * max(hot, 1.0))
        model.refused += over
        model.backlog -= over
        self._tell(name, model, count, work, hot)
        if not self.blind:
            readings = tuple(g.reading(n, self.now) for n, g in model.groups.items())
            self.core.record_replicas(name, readings, self.now)

    def _requests(self, rate: float) -> tuple[int, float]:
        """A second's requests, Poisson as near as a normal is, and the sum of their work."""
        mean = rate / self.request_s
        count = round(max(0.0, self._random.gauss(mean, mean**0.5))) if mean > 0.0 else 0
        return count, self._random.gammavariate(count, self.request_s) if count else 0.0

    def _tell(self, name: str, model: FakeModel, count: int, work: float, hot: float) -> None:
        model.squares += 2.0 * count * self.request_s**2
        share = len(self.gateways)
        for n, gateway in enumerate(self.gateways):
            part = (count + share - 1 - n) // share
            model.offered[gateway] = model.offered.get(gateway, 0.0) + work * part / max(1, count)
            model.requests[gateway] = model.requests.get(gateway, 0) + part
            for length, of_all in model.longer.items():
                known = model.longer_offered.get((gateway, length), 0.0)
                own = known + of_all * work * part / max(1, count)
                model.longer_offered[gateway, length] = own
            if gateway in self.silent:
                continue
            reading = DemandReading(
                model.offered[gateway],
                model.squares / share,
                model.requests[gateway],
                backlog_s=model.backlog / share,
                oldest_wait_s=model.backlog / hot if hot else 0.0,
                urgent=bool(model.backlog) and not hot,
                running=model.running,
                longer_s={n: model.longer_offered[gateway, n] for n in model.longer},
                longer_backlog_s={n: s * model.backlog / share for n, s in model.longer.items()},
            )
            self.core.record_demand(gateway, name, reading, self.now)

    def _obey(self, name: str, decision: ModelDecision) -> None:
        terms = {group.name: group for group in self.settings.models[name].groups}
        for target in decision.groups:
            group = self.models[name].groups[target.name]
            bounds = terms[target.name]
            assert bounds.min <= target.target <= bounds.max, decision
            if target.target == group.target or decision.observed:
                continue
            if target.target < group.target and not group.unplaced:
                cut = decision.reason in (Reason.BUDGET, Reason.MANUAL)
                starting = any(ready < float("inf") for ready in group.starting)
                assert cut or not starting, decision
            self.changes.append((self.now, name, group.target, target.target))
            group.order(target.target, self.start_s, self.drain_s, self.now)

    # -- what tests look at

    def group(self, model: str = "m", group: str = "") -> FakeGroup:
        return self.models[model].groups[group]

    def last(self, model: str = "m") -> ModelDecision:
        return next(decision for _, name, decision in reversed(self.log) if name == model)

    def target(self, model: str = "m", group: str = "") -> int:
        return of_group(self.last(model), group).target

    def reasons(self, model: str = "m") -> set[Reason]:
        return {decision.reason for _, name, decision in self.log if name == model}

    def reversals(self, within_s: float = 600.0) -> int:
        """Changes against the one before, so soon after it."""
        pairs = zip(self.changes, self.changes[1:], strict=False)
        return sum((b[3] > b[2]) != (a[3] > a[2]) and b[0] - a[0] < within_s for a, b in pairs)

    def refused_share(self, model: str = "m") -> float:
        each = self.models[model]
        return each.refused / each.total if each.total else 0.0


def of_group(decision: ModelDecision, name: str = "") -> GroupTarget:
    return next(each for each in decision.groups if each.name == name)
