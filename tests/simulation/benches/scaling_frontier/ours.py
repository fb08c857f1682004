"""Headrace's own autoscaler, the production core, as one more policy.

It hears what a gateway reports each second (counters that only grow), what Serve says runs, and
starts that were measured before; it is asked each second. Nothing is tuned to the trace but what
`PolicySettings` says.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoscaling.autoscaler import Autoscaler
from autoscaling.settings import GroupTerms, ModelTerms, PolicySettings, ScalingSettings
from autoscaling.types import DemandReading, GroupReading, StartReading, State
from tests.simulation.benches.scaling_frontier.load import Load
from tests.simulation.benches.scaling_frontier.world import MOST, Observation, Starts

MODEL, GATEWAY = "model", "gateway"
MEASURED = 32  # starts


class Headrace:
    """One model of one group, one gateway."""

    def __init__(
        self, load: Load, starts: Starts, policy: PolicySettings | None = None,
        percentile: float = 0.99,
    ) -> None:  # fmt: skip
        groups = (GroupTerms(min=1, max=MOST),)
        policy = policy or PolicySettings()
        terms = ModelTerms(MODEL, load.slo_s, groups, percentile, policy=policy)
        self.core = Autoscaler(ScalingSettings({MODEL: terms}))
        draw = starts.draws(seed=0)
        for _ in range(MEASURED):
            self.core.record_start(StartReading(MODEL, "", State.COLD, draw()))
        self._group = _group(load)
        self._said = DemandReading()

    def wants(self, seen: Observation, now: float) -> int:
        said = self._said
        self._said = DemandReading(
            said.offered_s + seen.offered_s,
            said.offered_sq_s2 + seen.offered_sq_s2,
            said.requests + seen.requests,
            said.served_s + seen.busy_s,
            backlog_s=seen.backlog_s,
            oldest_wait_s=seen.oldest_wait_s,
        )
        group = replace(
            self._group,
            target=seen.target, hot=seen.hot, starting=seen.starting, draining=seen.draining,
        )  # fmt: skip
        self.core.record_demand(GATEWAY, MODEL, self._said, now)
        self.core.record_replicas(MODEL, (group,), now)
        return self.core.decide(now).models[MODEL].groups[0].target


def _group(load: Load) -> GroupReading:
    """What a gateway would have learnt of its batches, each of one request."""
    mean = float(load.costs.mean())
    return GroupReading(
        speed=1.0,
        batch_s=mean,
        batch_p99_s=load.slo_s - float(np.quantile(load.waits, 0.01)),
        batch_scv=float(load.costs.var()) / mean**2,
    )
