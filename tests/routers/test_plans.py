"""What the core's plans keep: they change nothing, keep the bounds, and share by weight."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from routers.api.events import Arrive, Closed, Replicas
from routers.api.requests import LeaseEnd, Replica, Report, Request
from routers.api.settings import DispatcherSettings
from routers.core.dispatcher import Dispatcher
from routers.estimates.groups import ReplicaGroups
from routers.policies.batching import lead
from routers.policies.draft import QueueView
from routers.simulation.simulator import Arrival, SimDevice, simulate
from routers.state.flows import Flows
from routers.state.request_queue import RequestQueue
from routers.state.rows import ReplicaCapacity, Row, TrackedRequest

EDGES = (32, 128, 512)
PROFILE = tuple((rows, edge, 0.002 + 1e-5 * rows * edge) for rows in (1, 4, 8) for edge in EDGES)
SETTINGS = DispatcherSettings(EDGES, max_size=8, max_tokens=2048, profile=PROFILE)


class Full:
    """A queue in which rows of three flows wait, and a replica that could take some."""

    def __init__(self, settings: DispatcherSettings = SETTINGS, rows: int = 60) -> None:
        self.flows = Flows()
        self.waiting = RequestQueue(EDGES, self.flows)
        groups = ReplicaGroups(settings)
        self.view = QueueView(self.waiting, {}, groups, settings)
        self.capacity = ReplicaCapacity("r", groups.reference)
        rng = random.Random(7)
        for number in range(rows):
            self.add(number, rng.choice((8, 30, 90, 400)), 1.0 + rng.random())

    def add(self, number: int, length: int, due: float) -> None:
        tenant, weight = f"t{number % 3}", 1.0 + number % 3
        request = Request(number, (length,), 0.0, due, due + 9, tenant, weight=weight)
        flow = self.flows.of(tenant, 0, weight)
        edge = EDGES[self.waiting.bucket_of(length)]
        tracked = TrackedRequest(request, flow, 0.0, due, 1, edge, 0.003)
        row = Row(tracked, 0, length, number, edge, 0.003)
        tracked.admit((row,))
        self.waiting.add(row, 0.0)

    def lead(self):
        return lead(self.view, self.waiting.on_time[0], self.capacity, 0.0)

    def digest(self):
        """Where everything stands."""
        buckets = [bucket for lane in self.waiting.lanes() for bucket in lane.buckets()]
        places = [(b.flow.key, b.edge, b.turn, [row.order for row in b.live()]) for b in buckets]
        accounts = [(f.key, f.start, f.credit_s, f.rows) for f in self.flows.by_key.values()]
        return places, accounts, list(self.flows.virtual)


def test_a_plan_changes_nothing_and_comes_out_the_same_when_asked_again():
    full = Full()
    before = full.digest()
    first, second = full.lead(), full.lead()
    assert [row.order for row in first.draft.rows] == [row.order for row in second.draft.rows]
    assert first.draft.accounts == second.draft.accounts
    assert full.digest() == before


@pytest.mark.parametrize("most", [32, 512, 2048])
def test_a_batch_keeps_the_bounds_in_rows_and_tokens(most):
    draft = Full(replace(SETTINGS, max_tokens=most)).lead().draft
    assert 1 <= len(draft.rows) <= SETTINGS.max_size
    assert len(draft.rows) == 1 or len(draft.rows) * draft.longest <= most


def test_a_lane_without_rows_leads_nothing():
    full = Full(rows=1)
    (row,) = [row for bucket in full.waiting.on_time[0].buckets() for row in bucket.live()]
    full.waiting.remove(row)
    assert full.lead() is None


def backlog(weights: dict[str, float], each: int = 60, first: int = 0):
    return [
        Request(first + number * len(weights) + place, (30,), 0.0, 50.0, 99.0, tenant, weight=w)
        for place, (tenant, w) in enumerate(weights.items())
        for number in range(each)
    ]


def served(asked, batches: int, later=(), at: int = -1) -> list[int]:
    """Requests in the order in which one replica, which takes one at a time, is sent them. `later`:
    those that come after so many batches (`at`)."""
    core, ids, now = Dispatcher(replace(SETTINGS, max_size=1)), [], 0.0
    for request in asked:
        core.step(Arrive(request), 0.0)
    actions = core.step(Replicas((Replica("r", 1.0),)), 0.0)
    for number in range(batches):
        for request in later if number == at else ():
            core.step(Arrive(request), now)
        (sent,) = [each for each in actions if hasattr(each, "lease_id")]
        ids.append(sent.rows[0][0])
        now += sent.predicted_s
        report = Report(service_s=sent.predicted_s)
        actions = core.step(Closed(sent.lease_id, LeaseEnd.DONE, report), now)
    return ids


def test_flows_are_served_by_weight():
    ids = served(backlog({"a": 4.0, "b": 1.0}), 50)
    assert sum(number % 2 == 0 for number in ids) == pytest.approx(40, abs=6)


def test_who_comes_late_gets_no_credit_and_does_not_wait_for_others_backlog():
    ids = served(backlog({"old": 1.0}), 40, backlog({"new": 1.0}, first=1000), at=20)
    since = [number >= 1000 for number in ids]
    assert any(since[20:32]), "the newcomer waits for the backlog"
    assert 5 <= sum(since[20:]) <= 15, "the newcomer is paid for having slept"


def pool(count: int) -> list[SimDevice]:
    return [
        SimDevice(f"r{n}", lambda rows, width: 0.002 + 1e-5 * rows * width) for n in range(count)
    ]


def test_every_request_ends_once_and_the_same_seed_ends_the_same():
    """Twice what two replicas can do, from three tenants and priorities, in rows of all lengths."""

    def ran():
        rng, now, arrivals = random.Random(1), 0.0, []
        for number in range(240):
            now += rng.expovariate(1500.0)
            lengths = tuple(rng.choice((8, 30, 90, 400)) for _ in range(rng.choice((1, 1, 3))))
            priority, weight = rng.choice((0, 1, 2)), 1.0 + number % 3
            arrivals.append(
                Arrival(
                    now, lengths, 0.1, 2.0, tenant=f"t{number % 3}", priority=priority,
                    weight=weight,
                )
            )  # fmt: skip
        return simulate(SETTINGS, arrivals, pool(2))

    first = ran()
    assert all(outcome.answers == 1 for outcome in first.outcomes)
    assert (first.end.waiting_rows, first.end.leases, first.end.drift) == (0, 0, 0)
    assert first.end.evictions > 0
    times = [each.answered_at for each in first.outcomes]
    assert times == [each.answered_at for each in ran().outcomes]


@pytest.mark.parametrize(("drag", "share"), [(1.0, (0.2, 0.5)), (3.0, (0.0, 0.15))])
def test_replicas_share_the_work_and_a_slow_one_is_used_less(drag, share):
    settings = replace(SETTINGS, outliers=replace(SETTINGS.outliers, eject_ratio=float("inf")))
    first, *others = pool(3)
    devices = [replace(first, drag=lambda now: drag), *others]
    arrivals = [Arrival(0.012 * n, (100,), 1.0, 9.0) for n in range(90)]
    found = simulate(settings, arrivals, devices)
    used = sum(sent.replica_id == "r0" for _, sent in found.batches) / len(found.batches)
    assert share[0] <= used <= share[1]
