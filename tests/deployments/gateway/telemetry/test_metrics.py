"""Metrics: what requests and batches leave on the page, exact and bounded in labels."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from deployments.gateway.telemetry.levels import GatewayLevels, ModelLevels
from deployments.gateway.telemetry.metrics import GatewayMetrics
from deployments.gateway.telemetry.sample_tables import (
    BATCH_STAGES,
    LATENCY_EDGES_S,
    REQUEST_STAGES,
    WAITING_ROWS,
    BatchSample,
    LabelNames,
    RequestLabels,
    RequestTimes,
    SquaresTable,
)
from deployments.gateway.tenancy.fair_thread_pool import TurnStatistics
from deployments.preprocess.tokenizer import CacheStatistics
from routers.api.snapshot import (
    ControllerSnapshot,
    FlowSnapshot,
    GroupSnapshot,
    ReplicaSnapshot,
    Snapshot,
)
from routers.estimates.cost.model import Coefficients, CostError
from runtimes.types import DeviceMemory

OK = RequestLabels("m", "acme", "bulk", "openai")
BATCH = BatchSample("m", 128, 8, 0.25, 0.010, 0.008, 0.001, 0.0005, 0.008, 0.0005, 0.002)
CORE = Snapshot(
    waiting_rows=7, late_rows=2, waiting_requests=5, oldest_wait_s=0.05, leases=1, leased_rows=8,
    drift=0, rows_by_bucket=((64, 7), (512, 0)), backlog_s=0.25,
    replicas=(
        ReplicaSnapshot("r#1", 2, 1, 1, False, 0),
        ReplicaSnapshot("r#2", 2, 0, 0, False, 0, unhealthy=True, ejected=True, slowdown=5.0),
    ),
    groups=(
        GroupSnapshot("gpu", 2, 2, 1.0, 0.01, True), GroupSnapshot("cpu", 4, 3, 0.125, 0.1, False),
        GroupSnapshot("", 0, 0, 1.0, 0.0, True),
    ),
    edges=(64, 512), batch_targets=((64, 32), (512, 9)), edge_switches=3,
    hedges=12, hedges_won=8, ties=2, probes=5, retries=4, evictions=6, preempted=1,
    budget_s=0.75, utilisation=0.6, idle_gap_s=0.001, early_binding_s=0.002,
    controllers=(
        ControllerSnapshot("feasibility", "enforce", False, 0.03, 40, 0, ((0, "acme", 0.02),)),
        ControllerSnapshot("limit", "observe", True, 64, 0, 9, ((0, "gone", 64), (2, "acme", 80))),
    ),
    flows=(
        FlowSnapshot("acme", 0, 4.0, 3, 1, 0.125, 2.5, 0.0),
        FlowSnapshot("gone", 0, 1.0, 1, 1, 0.0625, 1.0, 0.0),
        FlowSnapshot("left", 0, 1.0, 1, 0, 0.0625, 0.5, 0.0),
        FlowSnapshot("acme", 9, 4.0, 0, 0, 0.0, 0.0, 0.0),
    ),
)  # fmt: skip
LEVELS = GatewayLevels(
    models=(
        ModelLevels(
            "m", CORE, CostError(0.1, 0.9, 5), Coefficients(0.005, 0.0002, 8e-6, 0.0),
            {"r#1": 0.75}, CacheStatistics(1, 500, 1000, 11, 12), {"answered": 4},
        ),
    ),
    preprocess=TurnStatistics(3, 9, 1, 2, 40, 6, 0.001),
    controller_ends=2,
)  # fmt: skip


@pytest.fixture
def metrics():
    return GatewayMetrics("gw-0", models=["m"], tenants=["acme"], levels=lambda: LEVELS)


def samples(metrics):
    """{(sample name, sorted label pairs without the gateway's): value}."""
    page, _ = metrics.exposition()
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            assert sample.labels.pop("gateway") == "gw-0"
            found[(sample.name, *sorted(sample.labels.items()))] = sample.value
    return found


def value(metrics, name, **labels):
    return samples(metrics).get((name, *sorted(labels.items())))


# ---- what requests and batches leave ------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, WAITING_ROWS, WAITING_ROWS + 1])
def test_every_request_is_counted_once(metrics, count):
    for _ in range(count):
        metrics.arrival("m", "acme", "bulk")
        metrics.request(OK, RequestTimes(0.02), 700)
    flow = {"model": "m", "tenant": "acme", "priority": "bulk"}
    ended = value(
        metrics, "headrace_requests_total", **flow, protocol="openai", outcome="ok", reason=""
    )
    assert ended == (count or None)
    assert value(metrics, "headrace_request_seconds_count", **flow) == (count or None)
    assert value(metrics, "headrace_arrivals_total", **flow) == (count or None)


def test_answers_in_time_are_counted_from_the_first_arrival_on(metrics):
    flow = {"model": "m", "tenant": "acme", "priority": "bulk"}
    metrics.arrival("m", "acme", "bulk")
    assert value(metrics, "headrace_slo_kept_total", **flow) == 0
    metrics.kept("m", "acme", "bulk")
    assert value(metrics, "headrace_slo_kept_total", **flow) == 1
    metrics.kept("m", "declared while it ran", "bulk")
    assert value(metrics, "headrace_slo_kept_total", **flow | {"tenant": "other"}) == 1


def test_each_stage_of_a_request_has_its_histogram(metrics):
    metrics.request(OK, RequestTimes(0.1, 0.001, 0.002, 0.003, 0.004, 0.005), 10)
    sums = [
        value(metrics, "headrace_stage_seconds_sum", model="m", stage=s) for s in REQUEST_STAGES
    ]
    assert sums == pytest.approx([0.001, 0.002, 0.003, 0.004, 0.005])
    flow = {"model": "m", "tenant": "acme", "priority": "bulk"}
    assert value(metrics, "headrace_queue_wait_seconds_sum", **flow) == pytest.approx(0.004)
    assert value(metrics, "headrace_response_bytes_sum", model="m") == 10


def test_a_stage_that_did_not_happen_is_no_sample(metrics):
    metrics.request(OK, RequestTimes(0.1, queue_s=0.004))
    stages = {dict(key[1:]).get("stage") for key in samples(metrics) if "stage_seconds" in key[0]}
    assert stages == {"queue"}


def test_what_was_refused_is_counted_by_outcome_and_is_no_latency_sample(metrics):
    metrics.request(OK._replace(outcome="shed", reason="queue_full"), RequestTimes(0.0001))
    found = samples(metrics)
    shed = [v for key, v in found.items() if ("outcome", "shed") in key]
    assert shed == [1.0]
    assert ("reason", "queue_full") in next(k for k in found if ("outcome", "shed") in k)
    assert not [key for key in found if key[0].startswith("headrace_request_seconds")]


def test_a_batch_leaves_size_padding_service_cost_ratio_and_stages(metrics):
    metrics.batch(BATCH)
    assert value(metrics, "headrace_batch_size_sum", model="m") == 8
    assert value(metrics, "headrace_padding_ratio_sum", model="m") == 0.25
    assert value(metrics, "headrace_service_seconds_sum", model="m", bucket="128") == 0.01
    assert value(metrics, "headrace_cost_ratio_sum", model="m") == pytest.approx(1.25)
    sums = [value(metrics, "headrace_stage_seconds_sum", model="m", stage=s) for s in BATCH_STAGES]
    assert sums == pytest.approx([0.001, 0.0005, 0.008, 0.0005, 0.002])


@given(st.lists(st.floats(0, 60), min_size=1, max_size=40))
@settings(max_examples=40, deadline=None)
def test_the_deviation_of_batch_times_is_that_of_their_squares(values):
    table = SquaresTable(LATENCY_EDGES_S)
    numbers = [table.series((str(index),)) for index in range(12)]  # grows in between
    for at in range(0, len(values), 7):
        part = np.array([*values[at : at + 7], math.nan])
        table.add(np.full(len(part), numbers[-1]), part)
    ((_, counts, total),) = table
    ((key, squares),) = table.squares()
    assert key == ("11",)
    variance = squares / counts[-1] - (total / counts[-1]) ** 2
    assert variance == pytest.approx(np.var(values), rel=1e-6, abs=1e-6)


def test_squares_of_batch_times_stand_beside_their_histogram(metrics):
    metrics.batch(BATCH)
    metrics.batch(BATCH._replace(service_s=0.03))
    of = {"model": "m", "bucket": "128"}
    found = value(metrics, "headrace_service_squared_seconds_total", **of)
    assert found == pytest.approx(0.01**2 + 0.03**2)


def test_a_batch_without_a_prediction_has_no_cost_ratio(metrics):
    metrics.batch(BATCH._replace(predicted_s=0.0))
    assert value(metrics, "headrace_cost_ratio_count", model="m") is None


def test_requests_of_different_models_and_tenants_stay_apart():
    metrics = GatewayMetrics("gw-0", models=["m", "n"], tenants=["a", "b"])
    for index, (model, tenant) in enumerate([("m", "a"), ("m", "b"), ("n", "a")]):
        for _ in range(index + 1):
            metrics.request(OK._replace(model=model, tenant=tenant), RequestTimes(1.0, queue_s=0.5))
    counts = [
        value(
            metrics, "headrace_request_seconds_count", model=model, tenant=tenant, priority="bulk"
        )
        for model, tenant in [("m", "a"), ("m", "b"), ("n", "a")]
    ]
    assert counts == [1, 2, 3]
    assert value(metrics, "headrace_stage_seconds_count", model="m", stage="queue") == 3


def test_names_that_callers_make_up_become_other_and_are_not_remembered(metrics):
    for index in range(500):
        metrics.arrival(f"model-{index}", f"tenant-{index}", f"priority-{index}")
        metrics.request(
            RequestLabels(f"model-{index}", f"tenant-{index}", f"p{index}", "oip"),
            RequestTimes(1.0),
        )
        metrics.batch(BATCH._replace(model=f"model-{index}"))
    other = {"model": "other", "tenant": "other", "priority": "other"}
    assert value(metrics, "headrace_arrivals_total", **other) == 500
    assert value(metrics, "headrace_request_seconds_count", **other) == 500
    assert len(metrics._recorded.requests._ids) == 1
    assert len(metrics._recorded.batches._ids) == len(metrics._recorded.arrivals) == 1


def test_a_tenant_declared_later_gets_its_own_label():
    names = LabelNames(["m"], ["a"])
    assert names.flow("m", "b", "bulk") == ("m", "other", "bulk")
    names.declare(tenants=["b"])
    assert names.flow("m", "b", "bulk") == ("m", "b", "bulk")
    assert names.flow("m", "a", "bulk")[1] == "other"
    names.declare(models=[])
    assert names.model("m") == "other"


def test_a_tenants_share_is_its_own_and_those_not_declared_are_added_up(metrics):
    def of(tenant, priority):
        names = ("queue_rows", "backlog_seconds", "served_seconds_total")
        flow = {"model": "m", "tenant": tenant, "priority": priority}
        return [value(metrics, f"headrace_tenant_{name}", **flow) for name in names]

    assert of("acme", "interactive") == [4, 0.125, 2.5]
    assert of("other", "interactive") == [3, 0.125, 1.5]
    assert of("acme", "other") == [0, 0, 0]
    assert of("gone", "interactive") == [None] * 3


def test_buckets_are_those_in_force_and_those_where_rows_wait(metrics):
    for bucket, target, rows in (("64", 32, 7), ("512", 9, 0)):
        assert value(metrics, "headrace_batch_size_target", model="m", bucket=bucket) == target
        assert value(metrics, "headrace_bucket_queue_rows", model="m", bucket=bucket) == rows


def test_slow_replicas_are_shown_with_their_slowdown(metrics):
    for replica, ejected, slowdown in (("r#1", 0, 1.0), ("r#2", 1, 5.0)):
        assert value(metrics, "headrace_replica_ejected", model="m", replica=replica) == ejected
        assert value(metrics, "headrace_replica_slowdown", model="m", replica=replica) == slowdown


def test_groups_are_shown_by_what_they_are_worth_and_whether_they_may_be_used(metrics):
    for group, healthy, speed, is_open in (("gpu", 2, 1.0, 1), ("cpu", 3, 0.125, 0)):
        assert value(metrics, "headrace_group_healthy_replicas", model="m", group=group) == healthy
        assert value(metrics, "headrace_group_speed", model="m", group=group) == speed
        assert value(metrics, "headrace_group_open", model="m", group=group) == is_open
    assert value(metrics, "headrace_group_speed", model="m", group="") is None


def test_controllers_show_their_mode_what_they_learnt_and_what_they_refused(metrics):
    for name, mode, learnt, shed, would in (
        ("feasibility", "enforce", 0.03, 40, 0),
        ("limit", "observe", 64, 0, 9),
    ):
        of = {"model": "m", "controller": name}
        assert value(metrics, "headrace_controller_mode", mode=mode, **of) == 1
        assert value(metrics, "headrace_controller_value", **of) == learnt
        assert value(metrics, "headrace_controller_shed_total", **of) == shed
        assert value(metrics, "headrace_controller_would_shed_total", **of) == would


def test_what_controllers_learnt_of_tenants_that_are_not_declared_is_left_out(metrics):
    found = {key: v for key, v in samples(metrics).items() if "controller_tenant_value" in key[0]}
    learnt = {(dict(key[1:])["tenant"], dict(key[1:])["priority"]): v for key, v in found.items()}
    assert learnt == {("acme", "interactive"): 0.02, ("acme", "bulk"): 80}


def test_levels_are_read_when_the_page_is_asked_for(metrics):
    for name, expected in [
        ("queue_rows", 7), ("queue_late_rows", 2), ("queue_requests", 5), ("inflight_batches", 1),
        ("inflight_rows", 8), ("accounting_drift", 0), ("backlog_seconds", 0.25),
        ("queue_oldest_wait_seconds", 0.05), ("cost_error_median", 0.1), ("cost_error_p99", 0.9),
        ("replicas", 2), ("bucket_switches_total", 3), ("hedges_total", 12),
        ("hedges_won_total", 8), ("ties_total", 2), ("probes_total", 5), ("retries_total", 4),
        ("evictions_total", 6), ("preempted_total", 1), ("copy_budget_seconds", 0.75),
        ("utilisation", 0.6), ("idle_gap_seconds", 0.001), ("early_binding_seconds", 0.002),
    ]:  # fmt: skip
        assert value(metrics, f"headrace_{name}", model="m") == expected
    assert value(metrics, "headrace_replica_duty_cycle", model="m", replica="r#1") == 0.75
    assert value(metrics, "headrace_batches_total", model="m", end="answered") == 4
    assert value(metrics, "headrace_controllers_frozen") == 0
    for per, seconds in [("batch", 0.005), ("row", 0.0002), ("token", 8e-6), ("token_length", 0)]:
        assert value(metrics, "headrace_cost_coefficient_seconds", model="m", per=per) == seconds
    assert value(metrics, "headrace_preprocess_waiting_jobs") == 3
    assert value(metrics, "headrace_preprocess_refused_total") == 6
    assert value(metrics, "headrace_preprocess_cache_hits_total", model="m") == 11
    assert value(metrics, "headrace_serve_controller_ends_total") == 2


def test_memory_of_gpus_is_shown_as_far_as_it_is_known():
    memory = {"r#1": DeviceMemory(1, 3, 80), "r#2": DeviceMemory(None, 4, 80)}
    levels = GatewayLevels((ModelLevels("m", CORE, device_memory=memory, memory_faults=5),))
    metrics = GatewayMetrics("gw-0", ["m"], ["t"], levels=lambda: levels)
    found = {
        (dict(labels)["replica"], dict(labels)["part"]): size
        for (name, *labels), size in samples(metrics).items()
        if name == "headrace_replica_device_memory_bytes"
    }
    assert found == {
        ("r#1", "own"): 1, ("r#1", "used"): 3, ("r#1", "total"): 80,
        ("r#2", "used"): 4, ("r#2", "total"): 80,
    }  # fmt: skip
    assert value(metrics, "headrace_memory_faults_total", model="m") == 5


def test_no_gpu_has_no_memory_to_show(metrics):
    assert not [key for key in samples(metrics) if "device_memory" in key[0]]


def test_how_often_serves_controller_was_ended_is_not_said_before_it_is_known():
    metrics = GatewayMetrics("gw-0", levels=GatewayLevels)
    assert b"headrace_serve_controller_ends" not in metrics.exposition()[0]


def test_connections_opened_and_reused_are_counted(metrics):
    metrics.connection_opened()
    metrics.connection_reused()
    metrics.connection_reused()
    assert value(metrics, "headrace_connections_opened_total") == 1
    assert value(metrics, "headrace_connections_reused_total") == 2


# ---- the page -----------------------------------------------------------------------------


def test_the_page_is_byte_for_byte_what_prometheus_client_writes():
    metrics = GatewayMetrics('g"w\\0\n', ["m"], ["acme"], lambda: LEVELS)
    metrics.request(OK, RequestTimes(0.1, queue_s=1e-7), 12_345_678)
    metrics.batch(BATCH)
    for _ in range(3):
        metrics.arrival("m", "acme", "bulk")
    metrics._recorded.connections_opened = 12_345_678
    registry = CollectorRegistry()
    registry.register(metrics)
    assert metrics.exposition()[0] == generate_latest(registry)


def test_a_scraper_that_takes_only_openmetrics_gets_it(metrics):
    metrics.request(OK, RequestTimes(0.1))
    page, content_type = metrics.exposition("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    names = {family.name for family in openmetrics_families(page.decode())}
    assert "headrace_requests" in names


def test_a_page_is_made_once_a_second_in_each_form(metrics):
    forms = "", "application/openmetrics-text; version=1.0.0"
    first = [metrics.page(form, 0.0) for form in forms]
    assert first[0][1] != first[1][1]
    metrics.request(OK, RequestTimes(0.1))
    assert [metrics.page(form, 0.9) for form in forms] == first
    assert metrics.page("*/*", 0.9) is first[0]
    assert all(metrics.page(form, 1.0) != before for form, before in zip(forms, first, strict=True))


def test_the_documentation_lists_exactly_the_metrics_there_are(metrics):
    metrics.request(OK, RequestTimes(0.1, queue_s=0.1), 1)
    metrics.batch(BATCH)
    page = metrics.exposition()[0].decode()
    served = set(re.findall(r"^# TYPE (headrace_\w+)", page, re.MULTILINE))
    text = Path(__file__).parents[4].joinpath("docs", "observability.md").read_text()
    assert set(re.findall(r"^\| `(headrace_\w+)`", text, re.MULTILINE)) == served
