from __future__ import annotations

from typing import Any

from deployments.tools.console.status_table import model_lines, pool_line


def group(**more: Any) -> dict[str, Any]:
    plain = {
        "name": "", "wanted": 2, "target": 2, "serve_target": 2, "running": 2, "starting": 0,
        "draining": 0, "unplaced_s": 0.0, "missing": "",
    }  # fmt: skip
    return plain | more


def model(*groups: dict[str, Any], **more: Any) -> dict[str, Any]:
    plain = {
        "model": "a", "groups": list(groups) or [group()], "reason": "steady", "text": "why.",
        "offered_s": 1.2, "planned_s": 1.5, "forecast_s": 1.4, "forecast_trusted": False,
        "time_to_capacity_s": 7.0, "observed": False, "pinned": {}, "states": {},
    }  # fmt: skip
    return plain | more


def test_numbers_reason_and_demand():
    said = dict(model_lines(model(group(wanted=3, target=2, draining=1), forecast_trusted=True)))
    assert said["replicas"] == "2 of 2, 3 wanted, 1 draining (steady)"
    assert said["why"] == "why."
    assert said["demand"] == "1.20 busy replicas offered, 1.50 planned, 1.40 forecast"
    assert said["a new replica serves"] == "in 7.0 s"
    assert "set by hand" not in said


def test_groups_pins_and_what_is_only_shown():
    two = (group(name="gpu"), group(name="cpu", target=0, running=0, wanted=0))
    said = dict(model_lines(model(*two, pinned={"cpu": 0}, reason="manual", observed=True)))
    assert said["replicas"] == "gpu: 2 of 2; cpu: 0 of 0 (manual, shown and not done)"
    assert said["set by hand"] == "cpu 0; `headrace scale a auto` ends it"


def test_the_pool_says_what_it_holds_and_what_it_was_worth():
    report = {
        "replica": "p1", "free_bytes": 3 << 20,
        "residents": [{"model": "a", "serves": True}, {"model": "b", "serves": False}],
        "kept": [{"model": "llm", "wake_s": 0.4}, {"model": "c", "wake_s": 0.0}],
    }  # fmt: skip
    line = pool_line({
        "replicas": 2, "serve": {"running": 1}, "reports": [report], "cost_hours": 0.5,
        "saved_s": 12.0, "text": "one more is not worth it.",
    })  # fmt: skip
    assert line == (
        "1 of 2 replicas; p1: a, b (not yet), llm (asleep), c (warm), 3 MiB free; cost 0.50 "
        "replica hours, took 12 s of work; one more is not worth it."
    )
