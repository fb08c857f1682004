"""What gateways tell each other, through the registry, of inputs that have ended replicas.

Plain data of bounded size, said anew with each push: whoever joins later, and a registry that has
restarted, know it a push later. Times are seconds that are left, never a clock's.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CrashedInput:
    """`key`: its fingerprint, in which the model's version is. `replicas`: that were lost with it.
    `left_s`: for how long that counts. `convicted`: it is refused, not only suspected."""

    key: bytes
    replicas: tuple[str, ...]
    left_s: float
    convicted: bool


@dataclass(frozen=True, slots=True)
class CrashReport:
    """Of one model at one gateway. `spent`: by tenant, for how long each of the replicas counts
    that its inputs have ended, by the replica: two gateways may know of the same one."""

    inputs: tuple[CrashedInput, ...] = ()
    spent: dict[str, dict[str, float]] = field(default_factory=dict)


CrashReports = dict[str, CrashReport]
"""By model, canaries by the names they are served under."""
