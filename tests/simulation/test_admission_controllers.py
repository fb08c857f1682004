"""The controllers of admission on a batch queue on virtual time, decided by the seed.

One device serves batches of up to 32 rows in 5 ms + 0.6 ms a row (1,322 rows/s when full; the
service time varies by 10 %, log-normal), first come first served within a flow, flows by start-time
fair queueing. Poisson arrivals, SLO 100 ms, timeout 1 s. Each controller is switched on alone, so
that what it does is its own doing.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush, merge

import pytest

from routers.api.settings import (
    AdmissionParameters,
    CodelParameters,
    DispatcherSettings,
    LimitParameters,
    Mode,
)
from routers.shared.admission import Controllers
from routers.state.rows import TrackedRequest
from tests.routers.newcomers import ask, came, found

CAPACITY = 1322
SLO_S, TIMEOUT_S, TURNAROUND_S, ROWS = 0.1, 1.0, 0.03, 32
NONE = AdmissionParameters(
    Mode.OFF, codel=CodelParameters(Mode.OFF), limit=LimitParameters(Mode.OFF, least=8)
)
FEASIBILITY = replace(NONE, feasibility=Mode.ENFORCE)
CODEL = replace(NONE, codel=CodelParameters(Mode.ENFORCE, target_s=0.02, interval_s=0.1))
LIMIT = replace(NONE, limit=LimitParameters(Mode.ENFORCE, least=8))


@dataclass(eq=False)
class Row:
    flow: Flow
    arrival: float
    tracked: TrackedRequest
    outcome: str = ""
    ended: float = 0.0


@dataclass(eq=False)
class Flow:
    key: tuple[int, str]
    weight: float = 1.0
    tag: float = 0.0
    inflight: int = 0
    waiting: deque[Row] = field(default_factory=deque)


class Queue:
    """`drops_late`: rows leave at their latest start, refused after having queued."""

    def __init__(self, admission: AdmissionParameters, *, drops_late: bool = False) -> None:
        settings = DispatcherSettings((64,), slo_s=SLO_S, admission=admission)
        self.controllers = Controllers(settings)
        self.flows: dict[str, Flow] = {}
        self.rows: list[Row] = []
        self.limits: list[tuple[float, float]] = []
        self._patience_s = SLO_S - TURNAROUND_S if drops_late else TIMEOUT_S
        self._rng = random.Random(5)
        self._unit_s = 0.001
        self._virtual = 0.0

    def run(self, arrivals) -> Queue:
        """Arrivals: (time, tenant), ascending."""
        agenda: list[tuple[float, int, list[Row]]] = []
        arrivals = iter(arrivals)
        upcoming, number = next(arrivals, None), 0
        while agenda or upcoming is not None:
            if upcoming is not None and (not agenda or upcoming[0] <= agenda[0][0]):
                now = upcoming[0]
                self._arrive(upcoming[1], now)
                upcoming = next(arrivals, None)
            else:
                now, _, batch = heappop(agenda)
                self._finish(batch, now)
            if not agenda and (batch := self._form(now)):
                number += 1
                heappush(agenda, (now + self._service_s(batch), number, batch))
        return self

    def _arrive(self, tenant: str, now: float) -> None:
        flow = self.flows.setdefault(tenant, Flow((0, tenant)))
        tracked = came(flow.key, now, inflight=flow.inflight, slack_s=SLO_S - TURNAROUND_S)
        row = Row(flow, now, tracked)
        self.rows.append(row)
        waits_s = [len(each.waiting) * self._unit_s for each in self.flows.values()]
        rivals = sum(wait_s > 0.0 for wait_s in waits_s)
        before_s, tracked.forecast_s = len(flow.waiting) * self._unit_s, 0.0
        newcomer = found(tracked, now, before_s=before_s, competing_weight=rivals)
        for each in self.controllers.on_arrival:
            answer = ask(each, newcomer, now)
            if (answer.refused or answer.late_by_s) and each.verdicts.no():
                row.outcome, row.ended = "refused", now
                return
            tracked.forecast_s = max(tracked.forecast_s, answer.forecast_s)
        if not flow.waiting:
            flow.tag = max(flow.tag, self._virtual)
        flow.waiting.append(row)
        flow.inflight += 1

    def _form(self, now: float) -> list[Row]:
        batch: list[Row] = []
        while len(batch) < ROWS and (row := self._next(now)) is not None:
            self.controllers.waited(row.tracked, now, taken=False)
            if self.controllers.shed_at_turn(row.tracked, now):
                self._leave(row, "shed", now)
            else:
                batch.append(row)
        return batch

    def _next(self, now: float) -> Row | None:
        while waiting := [flow for flow in self.flows.values() if flow.waiting]:
            flow = min(waiting, key=lambda flow: flow.tag)
            row = flow.waiting.popleft()
            if now - row.arrival < self._patience_s:
                self._virtual = max(self._virtual, flow.tag)
                flow.tag += self._unit_s / flow.weight
                return row
            self.controllers.waited(row.tracked, now, taken=False)
            self._leave(row, "dropped", now)
        return None

    def _service_s(self, batch: list[Row]) -> float:
        service_s = (0.005 + 0.0006 * len(batch)) * self._rng.lognormvariate(0.0, 0.1)
        self._unit_s += 0.1 * (service_s / len(batch) - self._unit_s)
        self._serving_s = service_s
        return service_s

    def _finish(self, batch: list[Row], now: float) -> None:
        for row in batch:
            self._leave(row, "answered", now)
        for key, rows in Counter(row.flow.key for row in batch).items():
            work = (*key, self._serving_s * rows / len(batch))
            self.controllers.served((work,), now, late=False)
        shown = {each.name: each for each in self.controllers.snapshot(1.0, now)}
        self.limits += [(now, limit) for *_, limit in shown["limit"].by_flow]

    def _leave(self, row: Row, outcome: str, now: float) -> None:
        row.flow.inflight -= 1
        row.outcome, row.ended = outcome, now

    # -- what came of it

    def between(self, since: float, until: float, tenant: str = "a") -> list[Row]:
        flow = self.flows[tenant]
        return [row for row in self.rows if row.flow is flow and since <= row.arrival < until]


def poisson(rate, since, until, tenant="a", seed=1):
    rng, now = random.Random(f"{seed} {tenant}"), since
    while (now := now + rng.expovariate(rate)) < until:
        yield now, tenant


def burst(load, usual=0.6):
    """The usual load, then `load` times the capacity from 3 s to 8 s, then the usual again."""
    yield from poisson(usual * CAPACITY, 0.0, 3.0, seed=1)
    yield from poisson(load * CAPACITY, 3.0, 8.0, seed=2)
    yield from poisson(usual * CAPACITY, 8.0, 12.0, seed=3)


def in_slo(rows):
    good = sum(row.outcome == "answered" and row.ended <= row.arrival + SLO_S for row in rows)
    return good / len(rows)


def rate_in_slo(rows, seconds):
    return in_slo(rows) * len(rows) / seconds


def share(rows, outcome):
    return sum(row.outcome == outcome for row in rows) / len(rows)


def waits(rows):
    return sorted(row.ended - row.arrival for row in rows if row.outcome == "answered")


# -- nothing on


@pytest.mark.parametrize("load", [2, 10])
def test_without_any_controller_overload_answers_nobody_in_time(load):
    queue = Queue(NONE).run(burst(load))
    assert in_slo(queue.between(5, 8)) < 0.01


# -- the learnt limit


@pytest.mark.parametrize("load", [2, 10])
def test_limit_converges_in_overload_and_keeps_answers_in_time(load):
    queue = Queue(LIMIT).run(burst(load))
    assert rate_in_slo(queue.between(5, 8), 3.0) > 0.9 * CAPACITY
    settled = [limit for at, limit in queue.limits if 6.0 <= at < 8.0]
    assert max(settled) < 1.5 * min(settled)


@pytest.mark.parametrize("load", [2, 10])
def test_limit_lets_everybody_in_again_after_overload(load):
    queue = Queue(LIMIT).run(burst(load))
    assert in_slo(queue.between(9, 12)) > 0.999


def test_limit_ignores_a_low_load():
    queue = Queue(LIMIT).run(poisson(0.3 * CAPACITY, 0.0, 8.0))
    assert share(queue.rows, "refused") == 0.0


def test_limit_ignores_a_load_just_below_capacity():
    queue = Queue(LIMIT).run(poisson(0.85 * CAPACITY, 0.0, 8.0))
    assert share(queue.rows, "refused") < 0.005


def test_limit_of_an_aggressor_leaves_its_neighbour_alone():
    arrivals = merge(poisson(10 * CAPACITY, 0.0, 6.0, "a"), poisson(0.2 * CAPACITY, 0.0, 6.0, "b"))
    queue = Queue(LIMIT).run(arrivals)
    assert in_slo(queue.between(3, 6, "b")) > 0.99
    assert share(queue.between(3, 6, "a"), "refused") > 0.85


# -- CoDel


@pytest.mark.parametrize("load", [2, 10])
def test_codel_sheds_standing_queues_and_answers_many_in_time(load):
    queue = Queue(CODEL).run(burst(load))
    assert rate_in_slo(queue.between(5, 8), 3.0) > 0.6 * CAPACITY


def test_codel_sheds_nothing_below_capacity():
    queue = Queue(CODEL).run(poisson(0.85 * CAPACITY, 0.0, 8.0))
    assert share(queue.rows, "shed") == 0.0


# -- feasibility


@pytest.mark.parametrize("load", [2, 10])
def test_feasibility_keeps_answers_in_time_and_refuses_at_once(load):
    queue = Queue(FEASIBILITY, drops_late=True).run(burst(load))
    rows = queue.between(5, 8)
    assert rate_in_slo(rows, 3.0) > 0.95 * CAPACITY
    assert share(rows, "dropped") < 0.01 * share(rows, "refused")


def test_feasibility_lets_everybody_in_again_after_overload():
    queue = Queue(FEASIBILITY, drops_late=True).run(burst(10))
    assert in_slo(queue.between(8.2, 12)) > 0.999


def test_feasibility_calls_nobody_late_below_capacity():
    queue = Queue(FEASIBILITY, drops_late=True).run(poisson(0.85 * CAPACITY, 0.0, 8.0))
    assert share(queue.rows, "refused") < 0.005


def test_feasibility_refuses_the_aggressor_and_never_its_victims():
    victims = [f"v{n}" for n in range(8)]
    arrivals = merge(
        poisson(10 * CAPACITY, 0.0, 6.0, "a"),
        *(poisson(0.04 * CAPACITY, 0.0, 6.0, victim) for victim in victims),
    )
    queue = Queue(FEASIBILITY, drops_late=True).run(arrivals)
    aggressor = queue.between(2, 6, "a")
    assert share(aggressor, "dropped") < 0.01
    assert rate_in_slo(aggressor, 4.0) > 0.9 * (1.0 - 8 * 0.04) * CAPACITY
    for victim in victims:
        rows = queue.between(2, 6, victim)
        assert share(rows, "refused") == 0.0
        assert in_slo(rows) > 0.99
