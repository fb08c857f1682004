from __future__ import annotations

from autoscaling.settings import GroupTerms, ModelTerms, Needs
from autoscaling.types import GroupReading
from deployments.contract.scaling.messages import GroupLoad, Observed
from deployments.control.scaling.readings import (
    ServeObservations,
    Transition,
    group_readings,
    missing,
)

GPU = Needs((("CPU", 1.0), ("GPU", 1.0)))
TERMS = ModelTerms("a", 0.1, (GroupTerms("gpu", 1, 4, needs=GPU), GroupTerms("cpu", 0, 8)))
KNOWN = GroupLoad(1, 2.0, 0.02, 0.04, 0.5)


def seen(**pending: Transition) -> ServeObservations:
    found = ServeObservations()
    found.observe({"model-a/model-gpu": Observed(2, 3), "model-a/model-cpu": Observed(1, 1)}, 0.0)
    found.pending = {f"model-a/model-{name}": each for name, each in pending.items()}
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
