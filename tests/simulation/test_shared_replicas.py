"""Gateways that share replicas which stall: copies take most of the tail, for little more work.

The scenario is `two-gateways-stalls`; `docs/decisions/0090-two-gateways-at-one-replica.md` has the
figures of longer runs. A single seed of 300 s scatters by a third.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from deployments.tools.simulate.simulation import SimulateOptions, SimulationResult, prepare

pytestmark = pytest.mark.slow

SCENARIO = Path(__file__).parents[2] / "loadtests" / "scenarios" / "two-gateways-stalls.yaml"
SEEDS = (1, 2)


@cache
def simulated(mode: str, gateways: int, seed: int) -> SimulationResult:
    changes = (f"settings.models.device.hedge.mode={mode}", f"gateways={gateways}")
    result = prepare(SCENARIO, SimulateOptions(changes, seed=seed)).run(lambda now, n: None)
    assert not any(result.left_over.values()), result.left_over
    return result


def p99_s(mode: str, gateways: int) -> float:
    """The mean of the seeds."""
    groups = [simulated(mode, gateways, seed).summary.total() for seed in SEEDS]
    return sum([group.latency.percentile_s(99) or 0.0 for group in groups]) / len(SEEDS)


def busy_s(mode: str, gateways: int) -> float:
    return sum([simulated(mode, gateways, seed).summary.work.busy_s for seed in SEEDS])


# One gateway's tied requests: test_stragglers.py.
@pytest.mark.parametrize(
    ("mode", "gateways", "most"), [("hedge", 1, 0.25), ("hedge", 2, 0.45), ("tied", 2, 0.45)]
)
def test_copies_take_most_of_the_tail_of_stalls(mode: str, gateways: int, most: float) -> None:
    assert p99_s(mode, gateways) <= most * p99_s("off", gateways)
    assert busy_s(mode, gateways) <= 1.03 * busy_s("off", gateways)
