"""A model at this gateway, as the autoscaler is told: what was asked for, what one replica does.

Made of the snapshot of the model's core; counters only grow. Work is seconds of the reference
group, as `routers.state.flows` prices it.
"""

from __future__ import annotations

from autoscaling.types import DemandReading
from deployments.contract.scaling.messages import GroupLoad, ModelLoad
from routers.api.snapshot import GroupSnapshot, Snapshot

_HALF = 0.5  # of the slack that the SLO leaves: a backlog that takes longer is told of at once
_MIN_SLACK = 0.1  # of the SLO


def model_load(core: Snapshot, *, unserved: bool) -> ModelLoad:
    """`unserved`: a request has come lately that no replica could be sent."""
    offered = core.offered
    demand = DemandReading(
        offered_s=offered.work_s,
        offered_sq_s2=offered.sq_s2,
        requests=offered.requests,
        served_s=offered.served_s,
        refused=dict(offered.refused),
        by_length=dict(offered.by_length),
        backlog_s=core.backlog_s,
        oldest_wait_s=core.oldest_wait_s,
        urgent=unserved,
    )
    return ModelLoad(demand, {group.name: _group(group) for group in core.groups})


def crossing_s(core: Snapshot, slo_s: float) -> float:
    """Work that waits, from which on more replicas may be needed at once: what those that run do in
    half of the time that the SLO leaves beside a batch."""
    capacity = sum(group.running * group.speed for group in core.groups)
    batch_s = max((group.planned_p99_s for group in core.groups if group.running), default=0.0)
    return capacity * _HALF * max(slo_s - batch_s, _MIN_SLACK * slo_s)


def _group(group: GroupSnapshot) -> GroupLoad:
    return GroupLoad(
        hot=group.running,
        speed=group.speed,
        batch_s=group.planned_s,
        batch_p99_s=group.planned_p99_s,
        batch_scv=group.planned_scv,
    )
