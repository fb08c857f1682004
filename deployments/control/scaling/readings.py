"""What runs of each model, from Serve's numbers and gateways' reports, as the core reads it.

Serve's controller reports numbers of replicas four times a second. Its details cost it more, so
they are asked for only while something starts or stops (`unsettled`). A replica that was told to
stop holds its device until it is gone, so it is counted.

Gateways know which replicas can be sent work, and how much one does. The gateway that reaches most
replicas of a group is believed, since it has seen most of them work. A silent gateway is not
believed after `SILENT_S`, and is gone once Serve does not list it as running.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autoscaling.settings import GroupTerms, ModelTerms, Needs
from autoscaling.types import GroupReading
from deployments.contract.app_names import directory_key
from deployments.contract.scaling.messages import GatewayReport, GroupLoad, Observed

_LOOKS_ON_S = 5.0  # after the last change: a stopping replica shows in the details a moment later


@dataclass(frozen=True, slots=True)
class Transition:
    """One deployment's replicas that are starting or stopping."""

    starting: int = 0
    draining: int = 0
    unplaced: Mapping[str, float] = field(default_factory=dict)  # id: since when it has no node

    def unplaced_s(self, now: float) -> float:
        """For how long the oldest of them has waited for a node; 0.0 if none waits."""
        return now - min(self.unplaced.values()) if self.unplaced else 0.0


@dataclass(slots=True)
class ServeObservations:
    """What was last reported, by "application/deployment"."""

    observed: dict[str, Observed] = field(default_factory=dict)
    transitions: dict[str, Transition] = field(default_factory=dict)
    at: float = float("-inf")  # when `observed` was reported
    _changed_at: float = float("-inf")

    def observe(self, observed: Mapping[str, Observed], now: float) -> None:
        """Take in the numbers of all deployments that there are."""
        if observed != self.observed:
            self._changed_at = now
        self.observed, self.at = dict(observed), now
        self.transitions = {key: each for key, each in self.transitions.items() if key in observed}

    def unsettled(self, now: float) -> bool:
        """Whether Serve's details would say more than its numbers."""
        return (
            now - self._changed_at < _LOOKS_ON_S
            or any(each.running != each.target for each in self.observed.values())
            or any(each.starting or each.draining for each in self.transitions.values())
        )

    def detail(self, applications: Mapping[str, Any], now: float) -> None:
        """Take in Serve's details by application (`ServeInstanceDetails`)."""
        found: dict[str, Transition] = {}
        replicas_of = {
            f"{app}/{name}": deployment["replicas"]
            for app, details in applications.items()
            for name, deployment in details["deployments"].items()
        }
        for key, replicas in replicas_of.items():
            before = self.transitions.get(key, Transition()).unplaced
            starting = [each for each in replicas if each["state"] == "STARTING"]
            waiting = [each["replica_id"] for each in starting if each.get("node_id") is None]
            found[key] = Transition(
                len(starting),
                sum(each["state"] == "STOPPING" for each in replicas),
                {replica: before.get(replica, now) for replica in waiting},
            )
        self.transitions = found


def running_ids(applications: Mapping[str, Any], app: str) -> set[str]:
    """The ids of an application's running replicas."""
    found = applications.get(app, {}).get("deployments", {})
    return {
        replica["replica_id"]
        for deployment in found.values()
        for replica in deployment["replicas"]
        if replica["state"] == "RUNNING"
    }


SILENT_S = 5.0
_MAX_BELIEVED = 1e9  # a larger number is not believed: work a second, seconds, replicas


@dataclass(slots=True)
class GatewayReports:
    """The latest report of each gateway."""

    _latest: dict[str, tuple[float, GatewayReport]] = field(default_factory=dict)  # (when, what)

    def on_report(self, report: GatewayReport, now: float) -> None:
        self._latest[report.gateway] = (now, report)

    def silent(self, now: float) -> set[str]:
        """The gateways whose latest report is older than `SILENT_S`."""
        return {name for name, (at, _) in self._latest.items() if now - at > SILENT_S}

    def keep(self, running: Collection[str], now: float) -> set[str]:
        """Forget silent gateways that are not in `running`, and return their names."""
        gone = self.silent(now) - set(running)
        for name in gone:
            del self._latest[name]
        return gone

    def frozen(self, now: float) -> bool:
        """Whether any gateway reports the operator's switch as on: it takes a moment to reach
        all."""
        return any(report.frozen for report in self._fresh(now))

    def loads(self, model: str, now: float) -> dict[str, GroupLoad]:
        """The load of each group, from the gateway that reaches most of its replicas. Loads with
        impossible numbers are left out."""
        best: dict[str, GroupLoad] = {}
        for report in self._fresh(now):
            said = report.models.get(model)
            for group, load in said.groups.items() if said else ():
                if _is_sound(load) and (group not in best or load.hot > best[group].hot):
                    best[group] = load
        return best

    def _fresh(self, now: float) -> Iterator[GatewayReport]:
        return (report for at, report in self._latest.values() if now - at <= SILENT_S)


def _is_sound(load: GroupLoad) -> bool:
    seconds = (load.batch_s, load.batch_p99_s, load.batch_scv)
    return 0.0 < load.speed < _MAX_BELIEVED and all(
        0.0 <= each < _MAX_BELIEVED for each in (load.hot, *seconds)
    )


_UNKNOWN = GroupReading()


def group_readings(
    terms: ModelTerms,
    loads: Mapping[str, GroupLoad],
    seen: ServeObservations,
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
    group: GroupTerms, load: GroupLoad | None, seen: ServeObservations, key: str, missing: str,
    now: float,
) -> GroupReading:  # fmt: skip
    observed, transition = seen.observed[key], seen.transitions.get(key, Transition())
    known = load or GroupLoad(
        observed.running, _UNKNOWN.speed, _UNKNOWN.batch_s, _UNKNOWN.batch_p99_s,
        _UNKNOWN.batch_scv,
    )  # fmt: skip
    unplaced_s = transition.unplaced_s(now)
    return GroupReading(
        name=group.name,
        target=observed.target,
        hot=known.hot,
        starting=max(0, observed.target - observed.running),
        draining=transition.draining,
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
