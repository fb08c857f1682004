from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autoscaling.types import DemandReading
from deployments.contract.scaling.messages import GatewayReport, GroupLoad, ModelLoad
from deployments.control.scaling.readings import SILENT_S, GatewayReports


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
