"""What was asked for and what the autoscaler says of it are on the page, by model and group."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from deployments.contract.scaling.messages import ModelOutlook
from deployments.gateway.telemetry.levels import GatewayLevels, ModelLevels, model_status
from deployments.gateway.telemetry.metrics import GatewayMetrics
from routers.api.snapshot import GroupSnapshot, OfferedSnapshot, Snapshot

CORE = Snapshot(
    0, 0, 0, 0.0, 0, 0, 0, (), 0.0, (),
    groups=(GroupSnapshot("", 2, 1, 1.0, 0.01, True),),
    offered=OfferedSnapshot(7.5, 0.7, 40, 5.25, (("late", 3),), ((32, 6.0), (64, 1.5))),
)  # fmt: skip
OUTLOOK = ModelOutlook(
    may_sleep=True, wakes=False, ready_in_s=12.5, targets={"": 3}, wanted={"": 4}, starting=1,
    reason="spike", offered_s=1.5, planned_s=2.5, forecast_s=2.0, forecast_trusted=True,
)  # fmt: skip


LABELS = ("model", "group", "length", "reason")


def at(found: dict[Any, float], name: str, **labels: str) -> float:
    labels = {"model": "m"} | labels
    return found[(f"headrace_{name}", *map(labels.get, LABELS))]


def samples(model: ModelLevels) -> dict[Any, float]:
    metrics = GatewayMetrics("g", ["m"], ["t"], levels=lambda: GatewayLevels((model,)))
    found = {}
    for family in text_string_to_metric_families(metrics.exposition()[0].decode()):
        for sample in family.samples:
            del sample.labels["gateway"]
            found[(sample.name, *map(sample.labels.get, LABELS))] = sample.value
    return found


def test_work_that_was_asked_for_is_counted_by_model_and_length() -> None:
    found = samples(ModelLevels("m", CORE))
    assert at(found, "offered_work_seconds_total") == 7.5
    assert at(found, "offered_requests_total") == 40
    assert at(found, "served_work_seconds_total") == 5.25
    assert at(found, "offered_length_work_seconds_total", length="64") == 1.5
    assert at(found, "group_replicas", group="") == 2


def test_what_the_autoscaler_says_is_shown_once_it_has_said_something() -> None:
    nothing = samples(ModelLevels("m", CORE))
    assert not any("scaling" in str(name) or "target_rep" in str(name) for name, *_ in nothing)
    found = samples(ModelLevels("m", CORE, outlook=OUTLOOK))
    assert at(found, "wanted_replicas", group="") == 4
    assert at(found, "target_replicas", group="") == 3
    assert at(found, "starting_replicas") == 1
    assert at(found, "scaling_reason", reason="spike") == 1
    assert at(found, "scaling_offered_rate") == 1.5
    assert at(found, "scaling_planned_rate") == 2.5
    assert at(found, "scaling_forecast_rate") == 2.0
    assert at(found, "scaling_forecast_trusted") == 1
    assert at(found, "time_to_capacity_seconds") == 12.5


def test_a_sleeping_model_is_shown_as_asleep() -> None:
    for asleep in (False, True):
        levels = ModelLevels("m", CORE, asleep=asleep)
        assert at(samples(levels), "asleep") == asleep
        assert model_status(levels).asleep is asleep
