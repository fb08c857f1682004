"""What other gateways say of inputs that have ended replicas of one model, as of the last time.

Suspicions are what others say now: each hearing replaces those of the one before, and an answer
here clears an input of the replicas that others have lost with it. For the event loop's thread
alone; times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deployments.contract.crash_reports import CrashedInput, CrashReport

_NONE: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Suspicion:
    until: float
    replicas: frozenset[str]


class CrashesElsewhere:
    """`others`: gateways besides this one; None: nobody has said how many there are."""

    def __init__(self) -> None:
        self.others: int | None = None
        self._suspicions: dict[bytes, _Suspicion] = {}
        self._cleared: dict[bytes, frozenset[str]] = {}
        self._spent: dict[str, dict[str, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._suspicions or self._spent)

    def hear(self, reports: Sequence[CrashReport], others: int, now: float) -> None:
        """What each of the others that knows the model has said last."""
        self.others = others
        said = [each for report in reports for each in report.inputs if not each.convicted]
        self._cleared = {k: self._cleared[k] for each in said if (k := each.key) in self._cleared}
        self._suspicions = {}
        for each in said:
            self._suspect(each, now)
        self._spent = {}
        for report in reports:
            for tenant, left in report.spent.items():
                known = self._spent.get(tenant, {})
                self._spent[tenant] = latest(known, {r: now + left_s for r, left_s in left.items()})

    def replicas(self, key: bytes, now: float) -> frozenset[str]:
        """That other gateways have lost with this input, which none has seen answered since."""
        found = self._suspicions.get(key)
        return found.replicas if found is not None and found.until > now else _NONE

    def answered(self, key: bytes) -> None:
        """It was answered here: what was lost with it before had another cause."""
        found = self._suspicions.pop(key, None)
        if found is not None:
            self._cleared[key] = self._cleared.get(key, _NONE) | found.replicas

    def was_there(self, key: bytes, replicas: frozenset[str], most: int, now: float) -> bool:
        """Whether another input, at another gateway, was on all but `most` of these replicas."""
        return any(
            each.until > now and len(replicas - each.replicas) <= most
            for other, each in self._suspicions.items()
            if other != key
        )

    def spent(self, tenant: str, now: float) -> dict[str, float]:
        """Until when each replica counts that the tenant's inputs have ended at other gateways."""
        return {r: until for r, until in self._spent.get(tenant, {}).items() if until > now}

    def sweep(self, now: float) -> None:
        """Forgets what is over: nobody may say anything any more."""
        self._suspicions = {k: s for k, s in self._suspicions.items() if s.until > now}
        self._spent = {tenant: left for tenant in self._spent if (left := self.spent(tenant, now))}

    def _suspect(self, said: CrashedInput, now: float) -> None:
        replicas = frozenset(said.replicas) - self._cleared.get(said.key, _NONE)
        known = self._suspicions.get(said.key)
        until = now + said.left_s
        if known is not None:
            known.replicas, known.until = known.replicas | replicas, max(known.until, until)
        elif replicas:
            self._suspicions[said.key] = _Suspicion(until, replicas)


def latest(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """All that are in either, each with the later of its times."""
    return {**one, **{r: max(until, one.get(r, until)) for r, until in other.items()}}
