"""What Serve and gateways report, as the autoscaling core reads it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from autoscaling.settings import GroupTerms, ModelTerms, Needs
from autoscaling.types import DemandReading, GroupReading
from deployments.contract.scaling.messages import GatewayReport, GroupLoad, ModelLoad, Observed
from deployments.control.scaling.readings import (
    SILENT_S,
    GatewayReports,
    ServeObservations,
    Transition,
    group_readings,
    missing,
    running_ids,
)

KEY = "model-a/model"


def details(*replicas: tuple[str, str, str | None]) -> dict[str, Any]:
    """As Serve has them: id, state and node of each."""
    found = [{"replica_id": i, "state": state, "node_id": node} for i, state, node in replicas]
    return {"model-a": {"deployments": {"model": {"replicas": found}}}}


def test_what_is_as_it_should_be_needs_no_second_look():
    seen = ServeObservations()
    seen.observe({KEY: Observed(2, 2)}, 0.0)
    assert seen.unsettled(1.0)  # it has only just been seen
    seen.observe({KEY: Observed(2, 2)}, 6.0)
    assert not seen.unsettled(6.0)
    seen.observe({KEY: Observed(2, 3)}, 7.0)
    assert seen.unsettled(100.0)


def test_one_that_goes_is_looked_at_until_it_is_gone():
    seen = ServeObservations()
    seen.observe({KEY: Observed(1, 1)}, 0.0)
    seen.detail(details(("r1", "RUNNING", "n"), ("r2", "STOPPING", "n")), 1.0)
    assert seen.transitions[KEY] == Transition(0, 1, {})
    assert seen.unsettled(60.0)
    seen.detail(details(("r1", "RUNNING", "n")), 61.0)
    assert not seen.unsettled(61.0)


def test_a_replica_waits_for_its_place_from_when_it_was_first_seen_without_one():
    seen = ServeObservations()
    seen.observe({KEY: Observed(1, 3)}, 0.0)
    seen.detail(details(("r1", "RUNNING", "n"), ("r2", "STARTING", None)), 1.0)
    seen.detail(details(("r2", "STARTING", None), ("r3", "STARTING", None)), 5.0)
    assert seen.transitions[KEY].starting == 2
    assert seen.transitions[KEY].unplaced_s(11.0) == 10.0
    seen.detail(details(("r2", "STARTING", "n"), ("r3", "STARTING", None)), 12.0)
    assert seen.transitions[KEY].unplaced_s(12.0) == 7.0
    seen.detail(details(("r2", "STARTING", "n"), ("r3", "RUNNING", "n")), 13.0)
    assert seen.transitions[KEY].unplaced_s(13.0) == 0.0


def test_a_deployment_that_is_gone_is_forgotten():
    seen = ServeObservations()
    seen.observe({KEY: Observed(0, 1)}, 0.0)
    seen.detail(details(("r1", "STARTING", None)), 1.0)
    seen.observe({}, 10.0)
    assert (seen.transitions, seen.unsettled(20.0)) == ({}, False)


def test_running_replicas_of_an_application():
    apps = details(("r1", "RUNNING", "n"), ("r2", "STARTING", "n"), ("r3", "RUNNING", "n"))
    assert running_ids(apps, "model-a") == {"r1", "r3"}
    assert running_ids(apps, "gateway") == set()


def load(hot: int, batch_s: float = 0.1) -> GroupLoad:
    return GroupLoad(hot, 1.0, batch_s, 2 * batch_s, 0.2)


def report(gateway: str, *, frozen: bool = False, **groups: GroupLoad) -> GatewayReport:
    models = {"a": ModelLoad(DemandReading(), groups)}
    return GatewayReport(gateway, models, frozen)


def test_who_reaches_most_replicas_of_a_group_is_believed_of_it():
    reports = GatewayReports()
    reports.on_report(report("g1", gpu=load(2), cpu=load(1, 0.3)), 0.0)
    reports.on_report(report("g2", gpu=load(3, 0.2), cpu=load(0, 0.9)), 0.0)
    assert reports.loads("a", 1.0) == {"gpu": load(3, 0.2), "cpu": load(1, 0.3)}
    assert reports.loads("b", 1.0) == {}


def test_a_silent_gateway_is_not_believed():
    reports = GatewayReports()
    reports.on_report(report("g1", gpu=load(3), frozen=True), 0.0)
    reports.on_report(report("g2", gpu=load(1)), 3.0)
    late = SILENT_S + 1
    assert reports.loads("a", late) == {"gpu": load(1)}
    assert (reports.frozen(1.0), reports.frozen(late)) == (True, False)
    assert reports.silent(late) == {"g1"}


def test_a_silent_gateway_is_gone_only_where_serve_does_not_run_it():
    reports = GatewayReports()
    for name in ("g1", "g2", "g3"):
        reports.on_report(report(name), 0.0)
    late = SILENT_S + 1
    reports.on_report(report("g3"), late)
    assert reports.keep({"g2"}, late) == {"g1"}
    assert reports.silent(late) == {"g2"}


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("name", ["speed", "batch_s", "batch_p99_s", "batch_scv"])
def test_what_is_no_number_is_not_believed(name, wrong):
    reports = GatewayReports()
    reports.on_report(report("g1", gpu=load(1)), 0.0)
    reports.on_report(report("g2", gpu=replace(load(2), **{name: wrong})), 0.0)
    assert reports.loads("a", 1.0) == {"gpu": load(1)}


GPU = Needs((("CPU", 1.0), ("GPU", 1.0)))
TERMS = ModelTerms("a", 0.1, (GroupTerms("gpu", 1, 4, needs=GPU), GroupTerms("cpu", 0, 8)))
KNOWN = GroupLoad(1, 2.0, 0.02, 0.04, 0.5)


def seen(**pending: Transition) -> ServeObservations:
    found = ServeObservations()
    found.observe({"model-a/model-gpu": Observed(2, 3), "model-a/model-cpu": Observed(1, 1)}, 0.0)
    found.transitions = {f"model-a/model-{name}": each for name, each in pending.items()}
    return found


def test_serve_says_what_was_asked_for_and_gateways_what_can_be_sent_work():
    gpu, cpu = group_readings(TERMS, {"gpu": KNOWN}, seen(), {}, 10.0)
    assert gpu == GroupReading("gpu", target=3, hot=1, starting=1, speed=2.0, batch_s=0.02,
                               batch_p99_s=0.04, batch_scv=0.5)  # fmt: skip
    unknown = GroupReading()
    assert (cpu.hot, cpu.starting, cpu.speed) == (1, 0, unknown.speed)
    assert (cpu.batch_s, cpu.batch_p99_s) == (unknown.batch_s, unknown.batch_p99_s)


def test_what_drains_is_counted_and_what_waits_for_a_place_says_for_what():
    waits = seen(gpu=Transition(1, 2, {"r": 4.0}))
    gpu, _ = group_readings(TERMS, {}, waits, {"CPU": 8.0}, 10.0)
    assert (gpu.draining, gpu.unplaced_s, gpu.missing) == (2, 6.0, "1 GPU (free: 0)")


def test_a_deployment_that_serve_has_not_yet_is_no_reading():
    found = ServeObservations()
    found.observe({"model-a/model-cpu": Observed(1, 1)}, 0.0)
    assert [each.name for each in group_readings(TERMS, {}, found, {}, 1.0)] == ["cpu"]


def test_what_is_missing_is_named_though_there_is_enough_of_everything():
    assert missing(GPU, {"CPU": 4.0, "GPU": 2.0}) == "one node with 1 CPU and 1 GPU free"
    assert missing(GPU, {"GPU": 0.5}) == "1 CPU (free: 0) and 1 GPU (free: 0.5)"
    assert missing(Needs(), {}) == "a node"
