"""What gateways tell each other, through the registry, about inputs that have ended replicas.

Plain data of bounded size. Each gateway repeats its whole report with every push, so a gateway that
joins later, or a registry that has restarted, knows all of it one push later. Times are seconds
left, never readings of a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CrashedInput:
    """One input that was on a replica when that was lost."""

    key: bytes  # the input's fingerprint, which includes the model's version
    replicas: tuple[str, ...]  # that were lost with it
    left_s: float  # for how long it still counts
    convicted: bool  # quarantined, rather than only suspected (the wire's word)


@dataclass(frozen=True, slots=True)
class CrashReport:
    """What one gateway reports of one model."""

    inputs: tuple[CrashedInput, ...] = ()
    # By tenant: the replicas that the tenant's inputs have ended, and for how many
    # seconds each still counts. By replica, because two gateways may report the same one.
    spent: dict[str, dict[str, float]] = field(default_factory=dict)


CrashReports = dict[str, CrashReport]
"""By model; a canary has an entry under the name that it is served under. `OF_GATEWAYS`: of
requests that have ended gateways, which are named like replicas."""
OF_GATEWAYS = ""
