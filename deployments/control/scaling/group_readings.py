"""What runs of a model, as the autoscaling core reads it: from Serve's numbers and gateways' loads.

Gateways know which replicas can be sent work, and how much one does. Serve knows how many replicas
were asked for, start and drain. Before any gateway has reported a group, the replicas that Serve
runs count as hot, and the core's defaults stand for what a replica does.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoscaling.settings import GroupTerms, ModelTerms, Needs
from autoscaling.types import GroupReading
from deployments.contract.app_names import directory_key
from deployments.contract.scaling.messages import GroupLoad
from deployments.control.scaling.deployments_seen import DeploymentsSeen, Pending

_UNKNOWN = GroupReading()


def group_readings(
    terms: ModelTerms,
    loads: Mapping[str, GroupLoad],
    seen: DeploymentsSeen,
    available: Mapping[str, float],
    now: float,
) -> tuple[GroupReading, ...]:
    """A reading for each group that Serve runs. `available`: resources of the cluster that no
    replica holds, by name."""
    return tuple(
        _reading(group, loads.get(group.name), seen, directory_key(terms.name, group.name),
                 missing(group.needs, available), now)
        for group in terms.groups
        if directory_key(terms.name, group.name) in seen.observed
    )  # fmt: skip


def _reading(
    group: GroupTerms, load: GroupLoad | None, seen: DeploymentsSeen, key: str, missing: str,
    now: float,
) -> GroupReading:  # fmt: skip
    observed, pending = seen.observed[key], seen.pending.get(key, Pending())
    known = load or GroupLoad(
        observed.running, _UNKNOWN.speed, _UNKNOWN.batch_s, _UNKNOWN.batch_p99_s,
        _UNKNOWN.batch_scv,
    )  # fmt: skip
    unplaced_s = pending.unplaced_s(now)
    return GroupReading(
        name=group.name,
        target=observed.target,
        hot=known.hot,
        starting=max(0, observed.target - observed.running),
        draining=pending.draining,
        speed=known.speed,
        batch_s=known.batch_s,
        batch_p99_s=known.batch_p99_s,
        batch_scv=known.batch_scv,
        unplaced_s=unplaced_s,
        missing=missing if unplaced_s else "",
    )


def missing(needs: Needs, available: Mapping[str, float]) -> str:
    """The resources that one more replica would lack, in words."""
    short = [
        f"{amount:g} {name} (free: {available.get(name, 0.0):g})"
        for name, amount in needs.resources
        if available.get(name, 0.0) < amount
    ]
    if short:
        return " and ".join(short)
    taken = " and ".join(f"{amount:g} {name}" for name, amount in needs.resources)
    return f"one node with {taken} free" if taken else "a node"
