"""What does Serve run of each deployment: how many replicas, which wait for a node, which drain?

Serve's controller reports numbers four times a second. Its details cost it more, so they are asked
for only while something starts or stops (`unsettled`). A replica that was told to stop holds its
device until it is gone, so it is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from deployments.contract.scaling.messages import Observed

_LOOKS_ON_S = 5.0  # after the last change: a stopping replica shows in the details a moment later


@dataclass(frozen=True, slots=True)
class Pending:
    """One deployment's replicas that are starting or stopping."""

    starting: int = 0
    draining: int = 0
    unplaced: Mapping[str, float] = field(default_factory=dict)  # id: since when it has no node

    def unplaced_s(self, now: float) -> float:
        """For how long the oldest of them has waited for a node; 0.0 if none waits."""
        return now - min(self.unplaced.values()) if self.unplaced else 0.0


@dataclass(slots=True)
class DeploymentsSeen:
    """What was last reported, by "application/deployment"."""

    observed: dict[str, Observed] = field(default_factory=dict)
    pending: dict[str, Pending] = field(default_factory=dict)
    at: float = float("-inf")  # when `observed` was reported
    _changed_at: float = float("-inf")

    def observe(self, observed: Mapping[str, Observed], now: float) -> None:
        """Take in the numbers of all deployments that there are."""
        if observed != self.observed:
            self._changed_at = now
        self.observed, self.at = dict(observed), now
        self.pending = {key: each for key, each in self.pending.items() if key in observed}

    def unsettled(self, now: float) -> bool:
        """Whether Serve's details would say more than its numbers."""
        return (
            now - self._changed_at < _LOOKS_ON_S
            or any(each.running != each.target for each in self.observed.values())
            or any(each.starting or each.draining for each in self.pending.values())
        )

    def detail(self, applications: Mapping[str, Any], now: float) -> None:
        """Take in Serve's details by application (`ServeInstanceDetails`)."""
        found: dict[str, Pending] = {}
        for key, replicas in _replicas(applications):
            before = self.pending.get(key, Pending()).unplaced
            starting = [each for each in replicas if each["state"] == "STARTING"]
            waiting = [each["replica_id"] for each in starting if each.get("node_id") is None]
            found[key] = Pending(
                len(starting),
                sum(each["state"] == "STOPPING" for each in replicas),
                {replica: before.get(replica, now) for replica in waiting},
            )
        self.pending = found


def _replicas(applications: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for app, details in applications.items():
        for name, deployment in details["deployments"].items():
            yield f"{app}/{name}", deployment["replicas"]


def running_ids(applications: Mapping[str, Any], app: str) -> set[str]:
    """The ids of an application's running replicas."""
    found = applications.get(app, {}).get("deployments", {})
    return {
        replica["replica_id"]
        for deployment in found.values()
        for replica in deployment["replicas"]
        if replica["state"] == "RUNNING"
    }
