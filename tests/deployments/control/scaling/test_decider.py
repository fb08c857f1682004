"""Messages in, targets and outlooks out; the real core decides, on a time of the test's."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from autoscaling.autoscaler import Autoscaler
from autoscaling.settings import (
    GroupTerms,
    Mode,
    ModelTerms,
    PolicySettings,
    PoolTerms,
    ScalingSettings,
)
from autoscaling.types import (
    Decisions,
    DemandReading,
    GroupReading,
    GroupTarget,
    ModelDecision,
    PoolDecision,
    PoolReading,
    Reason,
    ResidentReading,
    StartReading,
    State,
)
from deployments.contract.scaling import document
from deployments.contract.scaling.document import ScalingDocument
from deployments.contract.scaling.messages import (
    GatewayReport,
    GroupLoad,
    ModelLoad,
    Observed,
    PoolModel,
    PoolReport,
)
from deployments.control.scaling.decider import ANY_LENGTH, Decider, as_plain, changes, outlook

KEY = "model-a/model"
FIXED = ModelTerms("fixed", 0.1, (GroupTerms("", 2, 2),))
ONE = ModelTerms("a", 0.5, (GroupTerms("", 1, 4),))
ZERO = ModelTerms("a", 0.5, (GroupTerms("", 0, 4),), policy=PolicySettings(idle_s=10.0))


def settings(*terms: ModelTerms, **more) -> ScalingDocument:
    return ScalingDocument(ScalingSettings({each.name: each for each in terms}, **more))


class Run:
    """A decider whose gateway offers `rate` seconds of work a second, and whose Serve starts and
    ends replicas at once."""

    def __init__(self, *terms: ModelTerms, running: int = 1, decider: Decider | None = None):
        self.decider = decider or Decider(0.0, 1000)
        self.decider.reconfigure(settings(*terms), 0.0)
        self.now, self.offered, self.requests, self.running = 0.0, 0.0, 0, running

    def step(self, rate: float, *, frozen: bool = False, backlog_s: float = 0.0) -> list[str]:
        self.now += 1.0
        self.offered += rate
        self.requests += int(rate * 100)
        self.decider.exchange({KEY: Observed(self.running, self.running)}, self.now)
        self.decider.report(self.report(frozen=frozen, backlog_s=backlog_s), self.now)
        said = self.decider.step(self.now)
        self.running = self.decider.targets().get(KEY, self.running)
        return said

    def report(self, *, frozen: bool = False, backlog_s: float = 0.0) -> GatewayReport:
        demand = DemandReading(
            self.offered, self.offered * 0.01, self.requests, self.offered, backlog_s=backlog_s
        )
        load = GroupLoad(self.running, 1.0, 0.02, 0.04, 0.1)
        return GatewayReport("g1", {"a": ModelLoad(demand, {"": load})}, frozen)

    def run(self, seconds: int, rate: float, *, frozen: bool = False) -> None:
        for _ in range(seconds):
            self.step(rate, frozen=frozen)

    @property
    def reason(self) -> str:
        return self.decider.outlooks()["a"].reason


def test_a_fixed_number_is_a_target_from_the_first_moment():
    decider = Decider(0.0, 0)
    decider.reconfigure(settings(FIXED), 0.0)
    assert decider.step(1.0)[0].startswith("fixed: ? -> 2 replicas, fixed: ")
    assert decider.targets() == {"model-fixed/model": 2}
    assert decider.step(2.0) == []


def test_nothing_is_asked_for_before_anything_is_known_of_a_model():
    decider = Decider(0.0, 0)
    decider.reconfigure(settings(ONE), 0.0)
    decider.step(1.0)
    assert decider.targets() == {}


def test_more_work_brings_more_replicas_and_gateways_hear_how_many():
    run = Run(ONE)
    run.run(20, 0.2)
    assert run.running == 1
    run.run(60, 2.5)
    assert run.running == 3
    outlook = run.decider.outlooks()["a"]
    assert outlook.targets == {"": 3}
    assert not outlook.may_sleep
    assert outlook.offered_s == pytest.approx(2.5, rel=0.05)
    assert outlook.ready_in_s > 0


def test_what_is_only_observed_is_shown_and_not_asked_for():
    shown = ModelTerms("a", 0.5, ONE.groups, policy=PolicySettings(mode=Mode.OBSERVE))
    run = Run(shown)
    run.run(80, 2.5)
    assert run.decider.targets() == {}
    assert run.decider.outlooks()["a"].targets[""] > 1
    assert run.decider.status()["models"]["a"]["observed"]


def test_the_operators_switch_holds_all_numbers():
    run = Run(ONE)
    run.run(20, 0.2)
    run.run(60, 2.5, frozen=True)
    assert (run.running, run.reason) == (1, "frozen")
    assert run.decider.status()["frozen"]


def test_a_number_by_hand_holds_until_it_is_taken_back():
    run = Run(ONE)
    run.run(20, 0.2)
    assert run.decider.pin("a", "", 3, run.now) == ""
    assert any("-> 3 replicas, manual" in said for said in [*run.step(0.2)])
    run.run(5, 0.2)
    assert (run.running, run.reason) == (3, "manual")
    assert run.decider.status()["models"]["a"]["pinned"] == {"": 3}
    assert run.decider.pin("a", "", None, run.now) == ""
    run.step(0.2)
    assert run.reason != "manual"


GROUPS = ModelTerms(
    "g", 0.5, (GroupTerms("gpu", 1, 2), GroupTerms("cpu", 0, 4), GroupTerms("old", 1, 1))
)


@pytest.mark.parametrize(
    ("model", "group", "number", "said"),
    [
        ("b", "", 1, "there is no model b; must be one of a, g"),
        ("a", "", 5, "5 replicas are not within 1 to 4, the model's replicas.min and max"),
        ("a", "", 0, "0 replicas are not within 1 to 4, the model's replicas.min and max"),
        ("a", "gpu", 1, "a has no groups; --group must be left out"),
        ("g", "", 1, "g has the groups gpu, cpu, old: say which, with --group"),
        ("g", "cpu", 9, "9 replicas are not within 0 to 4, the model's replicas.min and max"),
        (
            "g",
            "old",
            2,
            "g always has 1: with replicas.min and replicas.max in place of replicas.count it can "
            "be scaled between those",
        ),
        ("g", "cpu", 0, ""),
        ("g", "cpu", None, ""),
    ],
)
def test_a_number_that_cannot_be_is_refused_in_words(model, group, number, said):
    assert Run(ONE, GROUPS).decider.pin(model, group, number, 0.0) == said


def test_a_model_that_may_sleep_does_and_says_that_a_request_would_wake_it():
    run = Run(ZERO)
    run.decider.set_described("a", True)
    run.run(20, 0.2)
    assert (run.running, run.decider.outlooks()["a"].wakes) == (1, False)
    run.run(30, 0.0)
    assert run.running == 0
    run.step(0.0)
    outlook = run.decider.outlooks()["a"]
    assert (outlook.may_sleep, outlook.wakes, outlook.reason) == (True, True, "asleep")
    run.step(0.1, backlog_s=0.1)
    assert (run.running >= 1, run.reason) == (True, "awake")


def test_a_model_that_nobody_knows_has_a_first_replica_run():
    run = Run(ZERO, running=0)
    run.decider.set_described("a", False)
    run.step(0.0)
    assert (run.running, run.reason) == (1, "first")


def test_what_cannot_wait_asks_for_a_decision_at_once():
    run = Run(ONE)
    assert not run.decider.report(run.report(), 1.0)
    assert run.decider.report(run.report(backlog_s=0.6), 1.0)
    urgent = ModelLoad(DemandReading(urgent=True))
    assert run.decider.report(GatewayReport("g1", {"a": urgent}), 1.0)
    assert not run.decider.report(GatewayReport("g1", {"other": urgent}), 1.0)


def test_a_start_is_told_from_its_order_on():
    run = Run(ONE)
    run.run(5, 0.1)
    run.decider.exchange({KEY: Observed(1, 2)}, 10.0)
    run.decider.record_start(StartReading("a", "", State.STAGED, 3.0, (("warming", 3.0),)), 14.0)
    run.decider.step(15.0)
    step = run.decider.status()["models"]["a"]["states"]["staged"]
    assert (step["median_s"], step["seen"]) == (4.0, 1)
    assert step["phases"] == (("placing", 1.0), ("process", 0.0), ("warming", 3.0))


def test_a_successor_knows_what_was_learnt_and_set_by_hand():
    run = Run(ONE)
    run.run(20, 0.2)
    run.decider.pin("a", "", 3, run.now)
    saved = run.decider.save(run.now)
    successor = Decider(5000.0, 0)
    successor.reconfigure(settings(ONE), 5000.0)
    successor.load(saved, 5000.0, 2.0)
    successor.exchange({KEY: Observed(3, 3)}, 5000.0)
    successor.step(5001.0)
    assert successor.targets() == {KEY: 3}
    assert successor.status()["models"]["a"]["pinned"] == {"": 3}


@pytest.mark.parametrize("state", [{}, {"models": 3, "pool": {}}, {"models": {}, "pool": None}])
def test_what_is_no_state_is_refused_whole(state):
    run = Run(ONE)
    run.run(20, 0.2)
    run.decider.pin("a", "", 2, run.now)
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        run.decider.load(state, run.now, 0.0)
    assert run.decider.status()["models"]["a"]["pinned"] == {"": 2}


def gateways(*ids: str) -> Mapping[str, object]:
    replicas = [{"replica_id": each, "state": "RUNNING", "node_id": "n"} for each in ids]
    return {"gateway": {"deployments": {"gateway": {"replicas": replicas}}}}


def test_a_gateway_that_serve_does_not_run_any_more_keeps_nobody_waiting():
    run = Run(ONE)
    run.run(20, 0.2)
    silent = run.now + 7.0
    run.decider.exchange({KEY: Observed(1, 1)}, silent)
    run.decider.step(silent)
    assert run.reason == "unknown"
    run.decider.detail(gateways("g2"), silent)
    assert run.decider.gateways.silent(silent) == set()


def test_a_pool_replica_is_told_what_to_hold():
    pool = PoolTerms(min=1, max=1, auto=False, memory_bytes=1000)
    terms = ModelTerms("a", 0.5, ONE.groups, in_pool=True, pool_key="k")
    model = PoolModel("a", "k", {"name": "a"})
    decider = Decider(0.0, 1000)
    decider.reconfigure(ScalingDocument(settings(terms, pool=pool).settings, (model,)), 0.0)
    run = Run(terms, decider=decider)
    decider.reconfigure(ScalingDocument(settings(terms, pool=pool).settings, (model,)), 0.0)
    assert decider.pool_report(PoolReport("p1", (), 1000), 0.5).revision == 0
    run.run(12, 0.9)
    decider.pool_report(PoolReport("p1", (), 1000), run.now)
    run.step(3.0, backlog_s=5.0)
    assert decider.targets()["headrace-pool/pool"] == 1
    decider.order_pool()
    order = decider.pool_report(PoolReport("p1", (), 1000), run.now)
    assert order.revision > 1000
    assert order.models == (model,)


def test_a_number_by_hand_is_done_also_where_decisions_are_only_observed():
    observed = PolicySettings(mode=Mode.OBSERVE)
    two = (GroupTerms("x", 1, 4), GroupTerms("y", 1, 9))
    decider = Decider(0.0, 1)
    decider.reconfigure(settings(ModelTerms("a", 0.5, two, policy=observed)), 0.0)
    serves = {"model-a/model-x": Observed(1, 1), "model-a/model-y": Observed(3, 3)}
    decider.exchange(serves, 1.0)
    decider.step(1.0)
    assert decider.targets() == {}
    assert decider.pin("a", "x", 3, 1.5) == ""
    decider.step(2.0)
    assert decider.targets() == {"model-a/model-x": 3, "model-a/model-y": 3}
    decider.pin("a", "x", None, 2.5)
    decider.step(3.0)
    assert decider.targets() == {}


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_numbers_that_are_none_stop_nobody_elses_scaling(wrong, caplog):
    run = Run(replace(ONE, name="spoilt"), ONE)
    for _ in range(90):
        run.now += 1.0
        run.offered += 2.0
        run.requests += 200
        run.decider.exchange({KEY: Observed(1, 1), "model-spoilt/model": Observed(1, 1)}, run.now)
        sound = run.report()
        spoilt = ModelLoad(DemandReading(wrong), {"": GroupLoad(1, wrong, wrong, wrong, wrong)})
        models = {"spoilt": spoilt, **sound.models}
        run.decider.report(GatewayReport("g1", models), run.now)
        run.decider.step(run.now)
    assert run.decider.targets()[KEY] > 2
    assert run.decider.targets()["model-spoilt/model"] == 1
    assert len([r for r in caplog.records if "amounts of work must be" in r.message]) == 1


def test_a_clock_that_was_set_back_stops_nothing():
    before = Run(ONE)
    before.run(200, 2.0)
    state = json.loads(json.dumps(before.decider.save(before.now)))
    after = Run(ONE, running=4)
    after.decider.load(state, 0.0, -86_400.0)
    after.run(3600, 0.05)
    assert after.running == 1


def test_a_document_comes_back_as_it_was_sent():
    pool = PoolTerms(min=1, max=3, needs=ONE.groups[0].needs)
    args = {"name": "a", "settings": {"lengths": {"max": 5}, "x": [1.5, None]}}
    terms = settings(ONE, GROUPS, FIXED, pool=pool).settings
    sent = ScalingDocument(terms, (PoolModel("a", "k", args),))
    assert document.parse(sent.text()) == sent
    assert document.parse(sent.text()).text() == sent.text()


def test_what_serve_starts_with_none_gets_its_least_at_once():
    decider = Decider(0.0, 1000)
    observed = replace(ONE, name="observed", policy=PolicySettings(mode=Mode.OBSERVE))
    decider.reconfigure(settings(FIXED, ONE, observed), 0.0)
    none = Observed(0, 0)
    serve = {"model-fixed/model": none, KEY: Observed(1, 1), "model-observed/model": none}
    assert decider.exchange(serve, 1.0) == {"model-fixed/model": 2, "model-observed/model": 1}
    decider.step(1.0)
    assert decider.targets()["model-observed/model"] == 1


ASLEEP_TERMS = ModelTerms("a", 0.1, (GroupTerms("", 0, 3),))
STEADY = ModelDecision("a", (GroupTarget("", 2, 2),), Reason.STEADY, "as wanted.", 1.5, 1.6)
RUNS = (GroupReading("", target=2, hot=1, starting=1),)


def of(*decisions: ModelDecision, pool: PoolDecision | None = None) -> Decisions:
    return Decisions({each.model: each for each in decisions}, pool or PoolDecision())


def test_a_model_wakes_only_where_nothing_runs_or_starts():
    asleep = replace(STEADY, groups=(GroupTarget("", 0, 0),), reason=Reason.ASLEEP)
    assert outlook(ASLEEP_TERMS, asleep, ()).wakes
    assert not outlook(ASLEEP_TERMS, asleep, RUNS).wakes
    assert outlook(ASLEEP_TERMS, STEADY, RUNS).starting == 1
    shown = outlook(ASLEEP_TERMS, replace(asleep, observed=True), ())
    assert (shown.may_sleep, shown.wakes) == (False, False)  # nobody would wake it


LARGE, SMALL = GroupTerms("large", 0, 2), GroupTerms("small", 1, 4, max_length=128)


@pytest.mark.parametrize(
    ("groups", "decided", "length"),
    [
        ((LARGE, SMALL), {}, ANY_LENGTH),
        ((replace(LARGE, min=1), SMALL), {}, 0),
        ((replace(LARGE, max_length=512), SMALL), {}, 512),
        ((replace(LARGE, min=1), replace(SMALL, min=0)), {}, 128),
        ((LARGE, SMALL), {"observed": True}, 0),
        ((LARGE, SMALL), {"reason": Reason.MANUAL}, 0),  # at none by hand
        ((replace(LARGE, max=0), SMALL), {}, 0),
    ],
)
def test_rows_wake_a_group_that_may_have_no_replicas(groups, decided, length):
    terms, targets = ModelTerms("a", 0.1, groups), (GroupTarget("large", 0, 0),)
    decision = replace(STEADY, groups=targets, **decided)
    assert outlook(terms, decision, ()).wakes_up_to == length


@pytest.mark.parametrize(("begun_s", "left_s"), [(0.0, 12.0), (5.0, 7.0), (12.0, 0.0), (20.0, 0.0)])
def test_what_has_passed_since_the_order_is_no_longer_to_come(begun_s, left_s):
    starts = replace(STEADY, time_to_capacity_s=12.0)
    assert outlook(ASLEEP_TERMS, starts, RUNS, begun_s).ready_in_s == left_s
    assert (
        outlook(ASLEEP_TERMS, starts, (), begun_s).ready_in_s == 12.0
    )  # an order of which nobody knows


@pytest.mark.parametrize(
    ("kept", "busy", "in_s"),
    [
        ({"a": 0.5}, False, 2.5),
        ({"a": 0.5}, True, 12.0),
        ({"b": 0.5}, False, 12.0),
        ({"a": 20.0}, False, 12.0),
    ],
)
def test_a_model_that_the_pool_keeps_is_back_sooner_than_a_new_replica(kept, busy, in_s):
    """Not where a pool replica has other work, which would have to end first."""
    core = Autoscaler(ScalingSettings({}), 0.0)
    other = ResidentReading("c", True, 100, 1.0, 0.0, busy=busy)
    core.pool(PoolReading("p1", (other,), kept=kept), 0.0)
    starts = replace(STEADY, time_to_capacity_s=12.0)
    assert outlook(ASLEEP_TERMS, starts, (), back_s=core.back_s("a")).ready_in_s == in_s


def test_a_changed_target_is_said_once_with_both_numbers():
    spike = replace(STEADY, groups=(GroupTarget("", 3, 3),), reason=Reason.SPIKE, text="a spike.")
    assert changes(of(), of(STEADY)) == ["a: ? -> 2 replicas, steady: as wanted."]
    assert changes(of(STEADY), of(STEADY)) == []
    assert changes(of(STEADY), of(replace(STEADY, text="other numbers."))) == []
    assert changes(of(STEADY), of(spike)) == ["a: 2 -> 3 replicas, spike: a spike."]
    held = replace(STEADY, reason=Reason.HELD)
    assert changes(of(STEADY), of(held)) == ["a: 2 replicas, held: as wanted."]
    shown = replace(spike, observed=True)
    assert changes(of(STEADY), of(shown)) == [
        "a: 2 -> 3 replicas, spike (observed, not done): a spike."
    ]


def test_groups_are_named_and_the_pool_says_its_own():
    two = (GroupTarget("gpu", 1, 1), GroupTarget("cpu", 0, 0))
    grouped = replace(STEADY, groups=two)
    assert changes(of(STEADY), of(grouped))[0].startswith("a: 2 -> gpu 1, cpu 0 replicas")
    assert changes(of(), of(pool=PoolDecision(2, text="worth it."))) == ["pool: 0 -> 2: worth it."]


def test_status_is_plain():
    plain = as_plain(STEADY, RUNS)
    (group,) = plain["groups"]
    assert (group["wanted"], group["target"], group["serve_target"]) == (2, 2, 2)
    assert (group["running"], group["starting"], group["draining"]) == (1, 1, 0)
    assert json.loads(json.dumps(plain))["reason"] == "steady"


@pytest.mark.parametrize(
    ("reason", "target", "may"),
    [
        (Reason.ASLEEP, 0, True), (Reason.BUDGET, 0, True), (Reason.UNKNOWN, 0, True),
        (Reason.FROZEN, 1, True), (Reason.FROZEN, 0, False), (Reason.MANUAL, 0, False),
    ],
)  # fmt: skip
def test_what_is_held_at_none_is_no_model_that_a_request_would_wake(reason, target, may):
    held = replace(STEADY, reason=reason, groups=(GroupTarget("", 0, target),))
    said = outlook(replace(ASLEEP_TERMS, groups=(GroupTerms("", 0, 4),)), held, ())
    assert (said.may_sleep, said.wakes) == (may, may)
