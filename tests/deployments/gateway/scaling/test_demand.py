"""What a core counts becomes what the autoscaler reads, name by name."""

from dataclasses import replace

import pytest

from autoscaling.types import DemandReading
from deployments.contract.scaling.messages import GroupLoad
from deployments.gateway.scaling.reporter import crossing_s, model_load
from routers.api.snapshot import GroupSnapshot, OfferedSnapshot, Snapshot


def a_group(name: str = "", running: int = 2, speed: float = 1.0) -> GroupSnapshot:
    return GroupSnapshot(name, running, running, speed, 0.01, True, 0.04, 0.06, 0.3)


def a_core(*groups: GroupSnapshot) -> Snapshot:
    return Snapshot(
        3, 0, 3, 0.2, 1, 4, 0, ((32, 3),), 0.5, (),
        groups=groups,
        offered=OfferedSnapshot(7.0, 0.7, 40, 5.0, (("late", 3),), ((32, 6.0), (64, 1.0))),
    )  # fmt: skip


def test_counters_and_what_waits_are_told_as_they_are() -> None:
    load = model_load(a_core(a_group("gpu"), a_group("cpu", 0, 0.1)), unserved=True)
    assert load.demand == DemandReading(
        7.0, 0.7, 40, 5.0, {"late": 3}, {32: 6.0, 64: 1.0}, 0.5, 0.2, urgent=True, running=4
    )
    assert load.groups == {
        "gpu": GroupLoad(2, 1.0, 0.04, 0.06, 0.3),
        "cpu": GroupLoad(0, 0.1, 0.04, 0.06, 0.3),
    }


def test_work_that_is_too_long_for_a_group_is_told_apart() -> None:
    core = replace(
        a_core(a_group()),
        offered=OfferedSnapshot(7.0, longer=((128, 2.0),)),
        longer_backlog=((128, 0.25),),
    )
    demand = model_load(core, unserved=False).demand
    assert (demand.longer_s, demand.longer_backlog_s) == ({128: 2.0}, {128: 0.25})


@pytest.mark.parametrize(
    ("groups", "slo_s", "crosses_at_s"),
    [
        ((), 0.1, 0.0),
        ((a_group(running=0),), 0.1, 0.0),
        ((a_group(running=1),), 0.1, 0.02),  # 0.1 less a batch of 0.06 at most, half of that
        ((a_group(running=2),), 0.1, 0.04),
        ((a_group(running=1), a_group("slow", 2, 0.5)), 0.1, 0.04),
        ((a_group(running=1),), 0.05, 0.0025),  # a batch alone takes longer: a tenth is left
    ],
)
def test_a_backlog_crosses_at_half_of_what_the_slo_leaves(
    groups: tuple[GroupSnapshot, ...], slo_s: float, crosses_at_s: float
) -> None:
    assert crossing_s(a_core(*groups), slo_s) == pytest.approx(crosses_at_s)
