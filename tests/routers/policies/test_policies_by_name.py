"""What every policy of a kind must keep, whichever is chosen: one suite over the registry."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from math import inf

import pytest

from routers.api.actions import Dispatch
from routers.api.errors import BadSettings
from routers.api.events import Arrive, Cancel, Closed, Reconfigure, Replicas, Tick
from routers.api.policies import Ranking
from routers.api.requests import LeaseEnd, Reason, Replica, Report, Request
from routers.api.settings import (
    AdmissionParameters,
    CodelParameters,
    DispatcherSettings,
    GroupSettings,
    LimitParameters,
    Mode,
    PolicyNames,
)
from routers.batch.lease import BatchReplica
from routers.batch.scheduler import BatchScheduler
from routers.estimates.groups import ReplicaGroup
from routers.policies.admission.types import AtTurn, LateWork, OnArrival, OnceLate
from routers.policies.batching.types import Batching, Choice, leave
from routers.policies.placement import Placement, ReplicaView
from routers.policies.registry import ADMISSIONS, BATCHINGS, KINDS, ORDERS, PLACEMENTS
from routers.simulation.simulator import Arrival, SimDevice, simulate
from tests.routers.invariants import check

EDGES = (32, 128, 512)
PROFILE = tuple((rows, edge, 0.002 + 1e-5 * rows * edge) for rows in (1, 4, 8) for edge in EDGES)
SETTINGS = DispatcherSettings(EDGES, max_size=8, max_tokens=2048, profile=PROFILE)
ADMISSION_SETS = ((), *[(name,) for name in ADMISSIONS], PolicyNames().admission[::-1])
CHOICE = (
    "edge", "max_rows", "late_before", "elsewhere_from", "max_guests", "hold_until", "leaves",
)  # fmt: skip
SHARING = [name for name in ORDERS if ORDERS[name](SETTINGS).ranking is Ranking.SHARES]


def under(**names: str | tuple[str, ...]) -> DispatcherSettings:
    return replace(SETTINGS, policies=PolicyNames(**names))


def traffic(seed: int, count: int = 240):
    """Twice what two replicas can do, from three tenants, in rows of all lengths."""
    rng, now = random.Random(seed), 0.0
    for number in range(count):
        now += rng.expovariate(1500.0)
        lengths = tuple(rng.choice((8, 30, 90, 400)) for _ in range(rng.choice((1, 1, 3))))
        yield Arrival(now, lengths, 0.1, 2.0, tenant=f"t{number % 3}", weight=1.0 + number % 3)


def pool(count: int = 2) -> list[SimDevice]:
    return [
        SimDevice(f"r{n}", lambda rows, width: 0.002 + 1e-5 * rows * width) for n in range(count)
    ]


COMBINATIONS = [
    *[{"order": order, "batching": batching} for order in ORDERS for batching in BATCHINGS],
    *[{"placement": placement, "order": "edf"} for placement in PLACEMENTS],
    *[{"admission": each} for each in ADMISSION_SETS],
]


def said(names) -> str:
    return "-".join(each if isinstance(each, str) else "+".join(each) for each in names.values())


@pytest.mark.parametrize("names", COMBINATIONS, ids=said)
def test_every_request_ends_once_and_the_same_seed_ends_the_same(names):
    first = simulate(under(**names), traffic(1), pool())
    assert all(outcome.answers + outcome.left == 1 for outcome in first.outcomes)
    assert sum(outcome.answers for outcome in first.outcomes) > 60
    for end in first.ends:
        assert (end.waiting_rows, end.leases, end.drift) == (0, 0, 0)
    again = simulate(under(**names), traffic(1), pool())
    assert [each.answered_at for each in again.outcomes] == [
        each.answered_at for each in first.outcomes
    ]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("batching", BATCHINGS)
def test_requests_that_are_due_at_no_time_are_served(order, batching):
    core = BatchScheduler(under(order=order, batching=batching))
    for number in range(8):
        core.step(Arrive(Request(number, (30,), 0.0, inf, inf)), 0.0)
    sent = core.step(Replicas((Replica("r", 1.0),)), 0.0)
    assert [len(each.rows) for each in sent if isinstance(each, Dispatch)] == [8]


@pytest.mark.interpreted
@pytest.mark.parametrize(("choice", "rows"), [(leave(0), []), (Choice(32, max_rows=0), [1])])
def test_a_policy_that_always_answers_the_same_is_not_asked_for_ever(monkeypatch, choice, rows):
    class Same(Batching):
        def choose(self, view, now):
            return choice

    monkeypatch.setitem(BATCHINGS, "same", Same)
    groups = GroupSettings("short", PROFILE, max_length=32), GroupSettings("long", PROFILE)
    core = BatchScheduler(replace(under(batching="same"), profile=(), groups=groups))
    core.step(Replicas((Replica("r", 1.0, group="long"),)), 0.0)
    sent = core.step(Arrive(Request(1, (30, 90), 0.0, 1.0, 9.0)), 0.0)
    assert [len(each.rows) for each in sent if isinstance(each, Dispatch)] == rows


@pytest.mark.interpreted
def test_late_rows_that_are_left_to_another_group_do_not_hide_those_on_time(monkeypatch):
    class LeavesLate(Batching):
        def choose(self, view, now):
            edge = view.lowest().edge
            return leave(edge) if view.late else Choice(edge)

    monkeypatch.setitem(BATCHINGS, "leaves_late", LeavesLate)
    groups = GroupSettings("short", PROFILE, max_length=32), GroupSettings("long", PROFILE)
    core = BatchScheduler(replace(under(batching="leaves_late"), profile=(), groups=groups))
    core.step(Replicas((Replica("r", 1.0, group="long"),)), 0.0)
    sent = core.step(Arrive(Request(0, (30,) * 8, 0.0, 9.0, 9.0, "served")), 0.0)
    for number in range(1, 60):  # the other tenant falls behind, and its rows are late
        (lease,) = (each for each in sent if isinstance(each, Dispatch))
        late = Request(number, (30,), number - 0.9, number - 0.9, number + 99.0, "late")
        core.step(Arrive(late), number - 0.9)
        core.step(
            Arrive(Request(100 + number, (30,) * 8, number - 0.5, number + 9.0, 999.0, "served")),
            number - 0.5,
        )
        sent = core.step(Closed(lease.lease_id, LeaseEnd.DONE, Report(0.1)), float(number))
        assert any(isinstance(each, Dispatch) for each in sent), number


@pytest.mark.parametrize("kind", ["order", "batching", "placement", "hedging", "edges"])
def test_unknown_name_is_refused_with_those_that_are_known(kind):
    with pytest.raises(BadSettings, match=rf"policies\.{kind} must be one of .*, got 'best'"):
        BatchScheduler(under(**{kind: "best"}))


class _NoQuestion(OnArrival):
    """Lacks `judge`."""


class _HalfAPlacement(Placement):
    def place(self, replica, now):
        return 0, 0.0, 0.0


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("kind", "policy", "method"),
    [
        ("admission", _NoQuestion, "judge"),
        ("placement", _HalfAPlacement, "score"),
        ("batching", Batching, "choose"),
    ],
)
def test_a_policy_that_lacks_its_method_is_refused_by_name(monkeypatch, kind, policy, method):
    monkeypatch.setitem(KINDS[kind], "half", policy)
    names = ("half",) if kind == "admission" else "half"
    with pytest.raises(BadSettings, match=f"policies.{kind} 'half' cannot be used: .*{method}"):
        BatchScheduler(under(**{kind: names}))


# ---- a queue to be looked at


class Full:
    """A core in which much waits and no replica runs."""

    def __init__(self, settings: DispatcherSettings, tenants: int = 3, rows: int = 60) -> None:
        self.core = BatchScheduler(settings)
        rng = random.Random(7)
        for number in range(rows):
            tenant, weight = f"t{number % tenants}", 1.0 + number % tenants
            length, due = rng.choice((8, 30, 90, 400)), 1.0 + rng.random()
            request = Request(number, (length,), 0.0, due, due + 9, tenant, weight=weight)
            self.core.step(Arrive(request), 0.0)

    @property
    def requests(self):
        return self.core._requests

    def choose(self, now: float = 0.0):
        """What the policy answers for a replica that is idle and trusted, in the first lane."""
        forming, waiting = self.core._forming, self.requests.waiting
        lane = next(lane for lane in waiting.lanes() if lane.rows)
        view = forming._view
        view.group, view.groups, view.replica_id = self.requests.groups.reference, None, "r"
        view.idle = view.trusted = True
        view.others_idle, view.last_edge, view.starts_in_s = False, 0, 0.0
        view.show(lane, lane.order.first(), None)
        choice = forming._batching.choose(view, now)
        return {name: getattr(choice, name) for name in CHOICE}

    def digest(self):
        """Where everything stands."""
        waiting = self.requests.waiting
        buckets = [bucket for lane in waiting.lanes() for bucket in lane.buckets()]
        places = [(b.flow.key, b.edge, b.turn, [row.order for row in b.live()]) for b in buckets]
        accounts = [(f.key, f.start, f.credit_s, f.rows) for f in waiting.flows.by_key.values()]
        return places, accounts, list(waiting.flows.virtual), self.core.snapshot(0.0)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_choice_changes_nothing_and_comes_out_the_same_when_asked_again(order, batching):
    full = Full(under(order=order, batching=batching))
    before = full.digest()
    assert full.choose() == full.choose()
    assert full.digest() == before
    check(full.core)


def dispatches(actions):
    return [each for each in actions if isinstance(each, Dispatch)]


@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_batch_keeps_the_bounds_in_rows_and_tokens(batching):
    for most in (32, 512, 2048):
        full = Full(replace(under(batching=batching), max_tokens=most))
        lengths = {each: t.request.lengths[0] for each, t in full.requests.live.items()}
        (sent,) = dispatches(full.core.step(Replicas((Replica("r", 1.0),)), 0.0))
        longest = max(lengths[request_id] for request_id, _ in sent.rows)
        assert 1 <= len(sent.rows) <= SETTINGS.max_size
        assert len(sent.rows) == 1 or len(sent.rows) * longest <= most


@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_lane_without_rows_leads_nothing(batching):
    full = Full(under(batching=batching), rows=1)
    full.core.step(Cancel(0), 0.0)
    assert not dispatches(full.core.step(Replicas((Replica("r", 1.0),)), 0.0))


# ---- order


def served(settings: DispatcherSettings, asked, batches: int = 40) -> list[int]:
    """Requests in the order they were sent to one replica, which takes one at a time."""
    core, ids = BatchScheduler(replace(settings, max_size=1)), []
    for request in asked:
        core.step(Arrive(request), 0.0)
    actions = core.step(Replicas((Replica("r", 1.0),)), 0.0)
    now = 0.0
    for _ in range(batches):
        (sent,) = [each for each in actions if hasattr(each, "lease_id")]
        ids.append(sent.rows[0][0])
        now += sent.predicted_s
        report = Report(service_s=sent.predicted_s)
        actions = core.step(Closed(sent.lease_id, LeaseEnd.DONE, report), now)
    return ids


def backlog(weights: dict[str, float], length: int = 30, each: int = 60):
    return [
        Request(number * len(weights) + place, (length,), 0.0, 50.0, 99.0, tenant, weight=weight)
        for place, (tenant, weight) in enumerate(weights.items())
        for number in range(each)
    ]


@pytest.mark.parametrize("order", SHARING)
def test_orders_by_shares_serve_by_weight(order):
    asked = backlog({"a": 4.0, "b": 1.0})
    ids = served(under(order=order), asked, batches=50)
    of_a = sum(number % 2 == 0 for number in ids)
    assert of_a == pytest.approx(40, abs=6)


@pytest.mark.parametrize("order", SHARING)
def test_who_comes_late_gets_no_credit_and_does_not_wait_for_others_backlog(order):
    core = BatchScheduler(replace(under(order=order), max_size=1))
    for request in backlog({"old": 1.0}):
        core.step(Arrive(request), 0.0)
    actions, now, since = core.step(Replicas((Replica("r", 1.0),)), 0.0), 0.0, []
    for number in range(40):
        if number == 20:
            for request in backlog({"new": 1.0}):
                core.step(Arrive(replace(request, request_id=1000 + request.request_id)), now)
        (sent,) = [each for each in actions if hasattr(each, "lease_id")]
        since.append(sent.rows[0][0] >= 1000)
        now += sent.predicted_s
        report = Report(service_s=sent.predicted_s)
        actions = core.step(Closed(sent.lease_id, LeaseEnd.DONE, report), now)
    assert any(since[20:32]), "the newcomer waits for the backlog"
    assert 5 <= sum(since[20:]) <= 15, "the newcomer is paid for having slept"


@pytest.mark.parametrize("order", ORDERS)
def test_a_charge_never_lowers_a_tag_and_a_refund_gives_it_back(order):
    rule, rng = ORDERS[order](SETTINGS), random.Random(3)
    account = rule.entered((0.0, 0.0), 2.0, 5.0)
    for _ in range(200):
        seconds = rng.choice((0.001, 0.03, 0.5))
        after = rule.charged(account, 2.0, seconds)
        assert after[0] >= account[0]
        given_back = rule.refunded(after, 2.0, seconds)
        assert rule.tag(given_back, 2.0) == pytest.approx(rule.tag(account, 2.0))
        assert rule.charged(given_back, 2.0, seconds) == pytest.approx(after)
        account = after


@pytest.mark.parametrize("batching", BATCHINGS)
def test_first_come_serves_in_order_of_arrival_whoever_asks(batching):
    ids = served(under(order="fifo", batching=batching), shuffled())
    assert ids == [request.request_id for request in shuffled()][:40]


@pytest.mark.parametrize("batching", BATCHINGS)
def test_earliest_deadline_serves_in_order_of_deadlines_whoever_asks(batching):
    ids = served(under(order="edf", batching=batching), shuffled())
    by_deadline = sorted(shuffled(), key=lambda request: request.deadline)
    assert ids == [request.request_id for request in by_deadline][:40]


def shuffled():
    rng = random.Random(5)
    numbers = rng.sample(range(60), 60)
    return [
        Request(n, (rng.choice((8, 400)),), 0.0, 20.0 + rng.random(), 99.0, f"t{n % 5}")
        for n in numbers
    ]


def test_token_counters_count_tokens_and_fair_queueing_seconds():
    """Long rows cost less a token than short ones where each row has a fixed part."""
    profile = tuple((rows, edge, rows * (0.01 + 1e-6 * edge)) for rows in (1, 8) for edge in EDGES)
    asked = [
        Request(
            2 * n + is_long, (400 if is_long else 20,), 0.0, 50.0, 99.0, "l" if is_long else "s"
        )
        for n in range(100)
        for is_long in (0, 1)
    ]
    shares = {}
    for order in ("sfq", "vtc"):
        settings = replace(under(order=order), profile=profile)
        ids = served(settings, asked, batches=84)
        shares[order] = sum(number % 2 for number in ids) / 84
    assert shares["sfq"] == pytest.approx(0.5, abs=0.05)
    assert shares["vtc"] == pytest.approx(20 / 420, abs=0.03)


def test_earliest_deadline_keeps_tight_deadlines_that_lax_work_waits_before():
    """One request in ten has 50 ms, the others 4 s, at most of what a replica can do."""
    rng, now, arrivals = random.Random(11), 0.0, []
    for number in range(900):
        now += rng.expovariate(400.0)
        slo_s = 0.05 if number % 10 == 0 else 4.0
        arrivals.append(Arrival(now, (30,), slo_s, 9.0, tenant=f"t{number % 10 == 0}"))
    found = simulate(under(order="edf"), arrivals, pool(1))
    tight = [each for each in found.outcomes if each.arrival.slo_s < 1.0]
    assert sum(each.in_slo for each in tight) / len(tight) > 0.95


# ---- placement


class Cold(ReplicaView):
    """A replica that holds so much, as a placement sees it."""

    def __init__(self, name: str, leases: int, slowdown: float = 1.0, foreign: int = 0) -> None:
        super().__init__()
        self.name, self.slowdown, self.leases = name, slowdown, leases
        self.foreign.leases, self.foreign.until = foreign, 1.0

    def holds(self) -> int:
        return self.leases


@pytest.mark.interpreted
def test_prequal_takes_the_quickest_that_is_not_hot_and_else_the_least_loaded():
    rule = PLACEMENTS["prequal"]()
    assert rule.score(Cold("a", 3), 0.0, 0.01) > 0.0, "before anybody has answered"
    for leases in [1] * 80 + [4] * 20:
        rule.answered(Cold("x", leases), 0.0)
    quick, slow, hot = Cold("quick", 2), Cold("slow", 1, slowdown=4.0), Cold("hot", 6)
    by_score = sorted((hot, slow, quick), key=lambda each: rule.score(each, 0.0, 0.01))
    assert [each.name for each in by_score] == ["quick", "slow", "hot"]
    (kind, *first), (other, *second) = rule.place(quick, 0.0), rule.place(slow, 0.0)
    assert kind == other
    assert first < second
    assert rule.score(Cold("hotter", 9), 0.0, 0.01) > rule.score(hot, 0.0, 0.01)


@pytest.mark.interpreted
@pytest.mark.parametrize("placement", ["least_loaded", "prequal"])
def test_what_other_gateways_hold_counts_until_it_should_have_ended(placement):
    rule = PLACEMENTS[placement]()
    busy, free = Cold("busy", 0, foreign=3), Cold("free", 1)
    assert rule.score(busy, 0.5, 0.01) > rule.score(free, 0.5, 0.01)
    assert rule.score(busy, 1.5, 0.01) < rule.score(free, 1.5, 0.01)


@pytest.mark.interpreted
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_asking_a_placement_changes_no_answer(placement):
    rule = PLACEMENTS[placement]()
    replica = BatchReplica(Replica("a", 2), ReplicaGroup("", 0, DispatcherSettings((16,))))
    replica.finish_at = replica.foreign.until = 0.5
    rule.answered(replica, 0.0)
    first = rule.place(replica, 0.0), rule.score(replica, 0.0, 0.01)
    for _ in range(5):
        assert (rule.place(replica, 0.0), rule.score(replica, 0.0, 0.01)) == first


def used(placement: str, count: int = 60) -> dict[str, int]:
    """How often each of three replicas was used, at a load that one of them could do."""
    devices = pool(3)
    arrivals = [Arrival(0.012 * n, (100,), 1.0, 9.0) for n in range(count)]
    found = simulate(under(placement=placement), arrivals, devices)
    counts = dict.fromkeys(("r0", "r1", "r2"), 0)
    for _, batch in found.batches:
        counts[batch.replica_id] += 1
    return counts


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_replicas_that_are_alike_share_the_work(placement):
    counts = used(placement)
    assert min(counts.values()) >= 12, counts


def test_finish_first_uses_a_slow_replica_less_and_round_robin_does_not():
    settings = replace(SETTINGS, outliers=replace(SETTINGS.outliers, eject_ratio=float("inf")))
    devices = pool(3)
    devices[0] = replace(devices[0], drag=lambda now: 3.0)
    arrivals = [Arrival(0.012 * n, (100,), 1.0, 9.0) for n in range(90)]
    share = {}
    for placement in ("finish_first", "round_robin"):
        policies = PolicyNames(placement=placement)
        found = simulate(replace(settings, policies=policies), arrivals, devices)
        share[placement] = sum(sent.replica_id == "r0" for _, sent in found.batches) / len(
            found.batches
        )
    assert share["finish_first"] < 0.15 < share["round_robin"]


# ---- admission


def test_a_controller_that_is_named_twice_or_given_a_mode_elsewhere_is_refused():
    with pytest.raises(BadSettings, match=r"policies\.admission names one twice: codel, codel"):
        BatchScheduler(under(admission=("codel", "codel")))
    with pytest.raises(BadSettings, match=r"policies\.admission must be one of .*, got 'best'"):
        BatchScheduler(under(admission=("codel", "best")))
    modes = AdmissionParameters(modes=(("codel", Mode.OFF),))
    with pytest.raises(BadSettings, match=r"admission\.modes: 'codel' has none to be set there"):
        BatchScheduler(replace(SETTINGS, admission=modes))


def in_mode(mode: Mode, names: tuple[str, ...]) -> DispatcherSettings:
    """Controllers that say no to much of what the suite's traffic asks for."""
    admission = AdmissionParameters(
        feasibility=mode,
        best_effort_capacity_s=0.0,
        codel=CodelParameters(mode, target_s=0.005, interval_s=0.05),
        limit=LimitParameters(mode, fixed=2),
    )
    return replace(under(admission=names), admission=admission)


def counted(mode: Mode, name: str):
    """The controller as it is shown, and how many requests ended for each reason."""
    found = simulate(in_mode(mode, (name,)), traffic(2, 600), pool(1))
    (shown,) = found.ends[0].controllers
    return shown, Counter(each.reason for each in found.outcomes)


@pytest.mark.parametrize("name", ADMISSIONS)
def test_a_controller_counts_its_noes_and_they_hold_only_where_it_enforces(name):
    enforced, ends = counted(Mode.ENFORCE, name)
    assert enforced.name == name
    assert enforced.would_shed == 0 < enforced.shed
    assert name == "feasibility" or 0 < 600 - ends[None] <= enforced.shed
    for mode in (Mode.OBSERVE, Mode.OFF):
        shown, ends = counted(mode, name)
        assert shown.shed == 0
        assert (shown.would_shed > 0) is (mode is Mode.OBSERVE)
        assert ends == {None: 600}, "all are answered"


def newcomers(settings: DispatcherSettings):
    """A core in which much waits, and what one more would find and be asked about."""
    full = Full(settings)
    request = Request(999, (400,), 0.0, 0.01, 9.0, "t0")
    tracked = full.requests.arrivals.track(request, 0.0)
    full.core.step(Replicas((Replica("r", 1.0),)), 0.0)
    return full, full.requests.admission._ahead.found_by(tracked, 0.0)


@pytest.mark.parametrize("name", ADMISSIONS)
def test_asking_a_controller_changes_no_answer_and_nothing_else(name):
    full, newcomer = newcomers(in_mode(Mode.ENFORCE, (name,)))
    before = full.digest()

    def asked(each):
        if isinstance(each, OnArrival):
            yield each.judge(newcomer, 0.0)
        if isinstance(each, OnceLate):
            yield each.refuses(LateWork(1.0, 1.0, 1.0, True), 0.0)
        if isinstance(each, AtTurn):
            yield each.look(each.seen(newcomer.flow.key), newcomer.request, 9.0, 0.0)

    (controller,) = full.requests.controllers._by_name.values()
    first = list(asked(controller))
    assert len(first) == 1, "it answers at one moment"
    for _ in range(5):
        assert list(asked(controller)) == first
    assert full.digest() == before
    assert newcomer.request.forecast_s is None
    assert not newcomer.request.late


def test_without_controllers_only_bounds_refuse():
    found = simulate(under(admission=()), traffic(2, 600), pool(1))
    assert found.ends[0].controllers == ()
    assert {each.reason for each in found.outcomes} == {None}
    bounded = replace(under(admission=()), max_queue_rows=50)
    found = simulate(bounded, traffic(2, 600), pool(1))
    assert {each.reason for each in found.outcomes} == {None, Reason.QUEUE_FULL}


@pytest.mark.parametrize("names", ADMISSION_SETS, ids=lambda names: "+".join(names) or "none")
def test_controllers_may_change_while_rows_wait_and_run(names):
    full = Full(SETTINGS)
    actions = full.core.step(Replicas((Replica("a", 1.0),)), 0.0)
    actions += full.core.step(Reconfigure(in_mode(Mode.OBSERVE, names)), 0.0)
    now, answered = 0.0, 0
    while open_ := [each for each in actions if hasattr(each, "lease_id")]:
        now += 0.001
        answered += sum(len(each.rows) for each in open_)
        actions = []
        for each in open_:
            done = Closed(each.lease_id, LeaseEnd.DONE, Report(service_s=0.01))
            actions += full.core.step(done, now)
        check(full.core)
    assert answered == 60


# ---- a change while much waits


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("batching", BATCHINGS)
def test_policies_may_change_while_rows_wait_and_run(order, batching):
    full = Full(SETTINGS)
    core = full.core
    sent = core.step(Replicas((Replica("a", 1.0), Replica("b", 1.0))), 0.0)
    rows = core.snapshot(0.0).waiting_rows
    placement = list(PLACEMENTS)[(list(ORDERS).index(order) + len(batching)) % len(PLACEMENTS)]
    changed = under(order=order, batching=batching, placement=placement)
    actions = core.step(Reconfigure(changed), 0.0)
    check(core)
    assert core.snapshot(0.0).waiting_rows == rows
    now, answered = 0.0, 0
    open_ = [each for each in (*sent, *actions) if hasattr(each, "lease_id")]
    while open_ or core.snapshot(now).waiting_rows:
        if open_:
            lease = open_.pop(0)
            now += 0.001
            answered += len(lease.rows)
            report = Report(service_s=0.01)
            done = core.step(Closed(lease.lease_id, LeaseEnd.DONE, report), now)
        else:  # the policy waits for more rows
            now += 0.5
            done = core.step(Tick(), now)
        check(core)
        open_ += [each for each in done if hasattr(each, "lease_id")]
    assert answered == 60


@pytest.mark.parametrize("before", ORDERS)
@pytest.mark.parametrize("after", ORDERS)
def test_nobody_starves_after_a_change_of_order_whatever_replicas_still_say(before, after):
    """A replica goes on telling the highest tag that it has seen, of whichever order."""
    core, now, told = BatchScheduler(replace(under(order=before), max_size=1)), 0.0, 0.0
    for request in backlog({"old": 1.0}, each=400):
        core.step(Arrive(request), 0.0)
    actions, newcomers = core.step(Replicas((Replica("r", 1.0),)), 0.0), 0
    for number in range(300):
        (sent,) = [each for each in actions if hasattr(each, "lease_id")]
        newcomers += sent.rows[0][0] >= 1000
        told = max(told, sent.rank[2])
        now += sent.predicted_s
        if number == 200:
            core.step(Reconfigure(replace(under(order=after), max_size=1)), now)
        if number == 210:
            for request in backlog({"new": 1.0}):
                core.step(Arrive(replace(request, request_id=1000 + request.request_id)), now)
        report = Report(service_s=sent.predicted_s, virtual_time=(told,))
        actions = core.step(Closed(sent.lease_id, LeaseEnd.DONE, report), now)
    if ORDERS[after](SETTINGS).ranking is Ranking.SHARES:
        assert 30 <= newcomers <= 60


@pytest.mark.parametrize("order", ORDERS)
def test_what_was_charged_under_another_order_is_neither_put_right_nor_given_back(order):
    full = Full(SETTINGS)
    sent = full.core.step(Replicas((Replica("a", 1.0),)), 0.0)
    (lease,) = [each for each in sent if hasattr(each, "lease_id")]
    full.core.step(Reconfigure(under(order=order)), 0.0)
    full.core.step(Replicas(()), 0.0)
    full.core.step(Closed(lease.lease_id, LeaseEnd.BUSY, Report()), 0.1)
    accounts = full.requests.flows.by_key.values()
    assert order == "sfq" or all(each.start >= 0.0 for each in accounts)


def test_too_old_requests_are_shed_under_every_batching():
    codel = CodelParameters(Mode.ENFORCE, target_s=0.005, interval_s=0.05)
    for batching in BATCHINGS:
        settings = replace(under(batching=batching), admission=AdmissionParameters(codel=codel))
        found = simulate(settings, traffic(2, 600), pool(1))
        assert any(each.reason is Reason.SHED for each in found.outcomes), batching
