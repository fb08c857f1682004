"""Which inputs of one model have ended replicas at other gateways, as those have last reported?

Each hearing replaces the suspicions of the one before. An answer here clears an input of the
replicas that others have lost with it. `CrashRecords` owns and asks this. For the event loop's
thread alone; times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deployments.contract.crash_reports import CrashedInput, CrashReport

_NO_REPLICAS: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Suspicion:
    """What other gateways say of one input."""

    until: float  # when it counts no more
    replicas: frozenset[str]  # lost with the input


class CrashesElsewhere:
    """What other gateways have reported of one model."""

    def __init__(self) -> None:
        self.others: int | None = None  # gateways besides this one; None: not known yet
        self._suspicions: dict[bytes, _Suspicion] = {}  # by input
        # By input: replicas that were lost with it elsewhere before it was answered here.
        self._cleared: dict[bytes, frozenset[str]] = {}
        # By tenant: the replicas that its inputs have ended, and until when each counts.
        self._spent: dict[str, dict[str, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._suspicions or self._spent)

    def hear(self, reports: Sequence[CrashReport], others: int, now: float) -> None:
        """Take in the last reports of those other gateways that know the model. `others`: how many
        gateways there are besides this one."""
        self.others = others
        said = [each for report in reports for each in report.inputs if not each.convicted]
        self._cleared = {k: self._cleared[k] for each in said if (k := each.key) in self._cleared}
        self._suspicions = {}
        for each in said:
            self._add_suspicion(each, now)
        self._spent = {}
        for report in reports:
            for tenant, left in report.spent.items():
                known = self._spent.get(tenant, {})
                self._spent[tenant] = latest(known, {r: now + left_s for r, left_s in left.items()})

    def replicas(self, key: bytes, now: float) -> frozenset[str]:
        """The replicas that other gateways have lost with this input and that nothing has cleared
        it of since."""
        found = self._suspicions.get(key)
        return found.replicas if found is not None and found.until > now else _NO_REPLICAS

    def answered(self, key: bytes) -> None:
        """The input was answered here: earlier losses had another cause."""
        found = self._suspicions.pop(key, None)
        if found is not None:
            self._cleared[key] = self._cleared.get(key, _NO_REPLICAS) | found.replicas

    def was_there(self, key: bytes, replicas: frozenset[str], most: int, now: float) -> bool:
        """Whether another input, at another gateway, was on all but at most `most` of these
        replicas."""
        return any(
            each.until > now and len(replicas - each.replicas) <= most
            for other, each in self._suspicions.items()
            if other != key
        )

    def spent(self, tenant: str, now: float) -> dict[str, float]:
        """The replicas that the tenant's inputs have ended at other gateways, each with the time
        until which it counts."""
        return {r: until for r, until in self._spent.get(tenant, {}).items() if until > now}

    def sweep(self, now: float) -> None:
        """Forget what counts no more; needed where no further report comes."""
        self._suspicions = {k: s for k, s in self._suspicions.items() if s.until > now}
        self._spent = {tenant: left for tenant in self._spent if (left := self.spent(tenant, now))}

    def _add_suspicion(self, said: CrashedInput, now: float) -> None:
        replicas = frozenset(said.replicas) - self._cleared.get(said.key, _NO_REPLICAS)
        known = self._suspicions.get(said.key)
        until = now + said.left_s
        if known is not None:
            known.replicas, known.until = known.replicas | replicas, max(known.until, until)
        elif replicas:
            self._suspicions[said.key] = _Suspicion(until, replicas)


def latest(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """The replicas of both, each with the later of its times."""
    return {**one, **{r: max(until, one.get(r, until)) for r, until in other.items()}}
