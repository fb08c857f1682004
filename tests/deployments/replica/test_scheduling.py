"""What users write of scheduling reaches the core, in its units and its words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from deployments.contract.description import GatewayIdentity, ModelDescription, dispatcher_settings
from deployments.replica.scheduling import scheduling
from deployments.settings.model import ModelSettings
from routers.api.settings import DispatcherSettings, Mode, validate

# Every setting that users have of the core, none at its default.
WRITTEN: dict[str, Any] = {
    "runtime": "synthetic",
    "policies": {
        "order": "drr",
        "placement": "prequal",
        "admission": ["codel", "feasibility"],
        "edges": "padding",
        "hedging": "multiple",
        "preemption": "none",
    },
    "slo": {"latency_ms": 250, "late": "refuse"},
    "lengths": {"max": 64, "buckets": 3},
    "batch": {"max_size": 16, "max_tokens": 4096, "max_slo_share": 0.3, "hold": "auto"},
    "queue": {"max_rows": 100},
    "admission": {"feasibility": "observe", "codel": "enforce", "limit": "enforce"},
    "hedge": {"mode": "tied"},
    "silence": {"mode": "off"},
    "outliers": {"mode": "off"},
}
# What the loaded model or the machine's own measurements say, not the file.
NOT_WRITTEN = {
    "pads",
    "initial_cost_s",
    "profile",
    "groups",  # what their replicas say, see test_groups.py
    "generation",  # of task generate only, and this too
    "preempt_streams",
    "admission.modes",  # all controllers that come along have parameters of their own
    "policies.batching",  # another one than `ragged` knows no `batch.hold`
    "queue_timeout_s",  # where queue.max_rows is not written, see below
    "buckets.fixed_shapes",
}
# What nobody could choose: constants (docs/decisions/0057-fewer-settings.md).
FIXED = {
    "fixed_size", "ageing_s",
    "buckets.solve_every_s", "buckets.half_life_s", "buckets.min_gain", "buckets.switch_s",
    "admission.margin_s", "admission.best_effort_capacity_s", "admission.max_queue_s",
    "admission.codel.target_s", "admission.codel.interval_s",
    "admission.limit.fixed", "admission.limit.least", "admission.limit.most",
    "hedge.quantile", "hedge.fixed_delay_s", "hedge.multiple", "hedge.budget",
    "hedge.max_utilisation", "hedge.min_samples",
    "outliers.max_ejected", "outliers.probe_s", "outliers.max_probe_s",
    "silence.quantile", "silence.least_s", "silence.most_s", "silence.fixed_s",
}  # fmt: skip

HOME = GatewayIdentity("g")
Describe = Callable[..., ModelDescription]


def told(description: Describe, **written: Any) -> DispatcherSettings:
    model = ModelSettings.model_validate({"runtime": "synthetic"} | written)
    return dispatcher_settings(description(scheduling=scheduling(model)), HOME)


def unchanged(value: Any, default: Any, at: str = "") -> set[str]:
    """Dotted names of what equals the default."""
    if not is_dataclass(value):
        return {at} if value == default else set()
    found: set[str] = set()
    for each in fields(value):
        name = f"{at}.{each.name}" if at else each.name
        found |= unchanged(getattr(value, each.name), getattr(default, each.name), name)
    return found


def test_a_setting_of_the_core_is_reached_by_one_that_users_write_or_fixed(
    description: Describe,
) -> None:
    model = ModelSettings.model_validate(WRITTEN)
    identity = GatewayIdentity("g", priorities=5, frozen=True)
    found = dispatcher_settings(description(scheduling=scheduling(model)), identity)
    assert unchanged(found, DispatcherSettings((512,))) == NOT_WRITTEN | FIXED


def test_batching_is_chosen_by_name_and_knows_no_hold(description: Describe) -> None:
    assert told(description, policies={"batching": "bucket"}).policies.batching == "bucket"
    with pytest.raises(ValueError, match="must be left out with policies"):
        told(description, policies={"batching": "bucket"}, batch={"hold": "auto"})


def test_streams_of_a_model_that_generates_may_be_preempted(description: Describe) -> None:
    assert told(description, task="generate", queue={"preempt_streams": True}).preempt_streams


def test_defaults_are_the_cores_own(description: Describe) -> None:
    found = told(description)
    own = DispatcherSettings(found.bucket_edges, max_tokens=8192)
    differs = {f.name for f in fields(own) if getattr(found, f.name) != getattr(own, f.name)}
    # A replica that is lost is replaced; in the core's own tests and simulations none is.
    assert differs == {"buckets", "suspect_hold_s", "queue_timeout_s"}
    assert found.buckets.adaptive


def test_the_queue_is_bounded_by_the_timeout_or_by_a_number_of_rows(description: Describe) -> None:
    unset = told(description, slo={"latency_ms": 100, "timeout_ms": 700})
    assert (unset.queue_timeout_s, unset.max_queue_rows) == (0.7, 2048)
    written = told(description, queue={"max_rows": 300})
    assert (written.queue_timeout_s, written.max_queue_rows) == (None, 300)


def test_streams_may_be_silent_for_longer_than_between_two_signs_of_life(
    description: Describe,
) -> None:
    assert told(description, task="generate").silence.least_s == 2.5


def test_the_core_starts_from_the_replicas_profile(description: Describe) -> None:
    profile = ((1, 16, 0.005), (8, 16, 0.007))
    described = description(
        scheduling=scheduling(ModelSettings(runtime="synthetic")), profile=profile
    )
    assert dispatcher_settings(described, HOME).profile == profile


def test_the_core_takes_what_users_may_write(description: Describe) -> None:
    validate(told(description))
    validate(told(description, **WRITTEN))


@pytest.mark.parametrize(
    ("buckets", "adaptive", "most"), [("auto", True, 8), (3, True, 3), ([4, 512], False, 8)]
)
def test_listed_edges_stay_and_others_follow_the_lengths(
    description: Describe, buckets: Any, adaptive: bool, most: int
) -> None:
    found = told(description, lengths={"buckets": buckets}).buckets
    assert (found.adaptive, found.max_edges) == (adaptive, most)


def test_shapes_that_a_backend_was_compiled_for_stay() -> None:
    model = ModelSettings.model_validate({"runtime": "synthetic"})
    fixed, free = (scheduling(model, fixed_shapes=each).core.buckets for each in (True, False))
    assert (fixed.adaptive, fixed.fixed_shapes) == (False, True)
    assert (free.adaptive, free.fixed_shapes) == (True, False)


def test_late_rows_are_no_more_than_may_wait(description: Describe) -> None:
    assert told(description, queue={"max_rows": 50}).max_late_rows == 50
    assert told(description, queue={"max_rows": 5000}).max_late_rows == 1024


def test_a_model_that_may_not_run_twice_is_not_hedged(description: Describe) -> None:
    assert told(description, hedge={"mode": "hedge"}).hedge.mode == "hedge"
    assert told(description, hedge={"mode": "hedge"}, retry=False).hedge.mode == "off"


def test_no_outlier_is_ejected_when_that_is_off(description: Describe) -> None:
    assert told(description, outliers={"mode": "off"}).outliers.eject_ratio == float("inf")


def test_modes_are_the_cores(description: Describe) -> None:
    found = told(description, admission={"codel": False, "feasibility": "observe"})
    assert found.admission.codel.mode is Mode.OFF
    assert found.admission.feasibility is Mode.OBSERVE


def test_the_models_own_bound_on_rows_wins(description: Describe) -> None:
    assert dispatcher_settings(description(max_rows=8), HOME).max_size == 8
    assert dispatcher_settings(description(max_rows=64), HOME).max_size == 32


@pytest.mark.parametrize(("slo", "max_s"), [
    ({}, 600.0),
    ({"latency_ms": 120_000}, 1200.0),
    ({"max_timeout_ms": 1000}, 1.0),
    ({"timeout_ms": 5000, "max_timeout_ms": 7000}, 7.0),
])  # fmt: skip
def test_a_callers_own_time_is_bounded_by_the_models(slo: dict[str, float], max_s: float) -> None:
    plan = scheduling(ModelSettings.model_validate({"runtime": "synthetic", "slo": slo}))
    assert plan.budget_s(max_s / 2) == max_s / 2
    assert plan.budget_s(max_s) == plan.budget_s(950_400.0) == max_s
