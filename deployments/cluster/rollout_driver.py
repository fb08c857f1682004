"""Carries out what the registry decides of canaries: puts a new version in the live one's place, or
takes the canary away.

About once a second, on a thread of its own; every step is put only where nobody else changes the
list at the moment, and tried again where the cluster does not answer. A registry that has started
anew knows no rollouts: they are begun again, and it is told again what people asked for. A canary
goes once the gateways have answered what they had for it, or after `_DRAINS_S`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from deployments.cluster.dashboard import ClusterError
from deployments.cluster.deployed import Canary, Deployed, leaving
from deployments.cluster.rollout_records import RolloutRecords
from deployments.contract.rollout.account import RolloutAccount
from deployments.contract.rollout.terms import RolloutTerms
from deployments.settings.tree import Settings

_HEARD_S = 2.0  # gateways hear of the end, and say what they have, within this
_DRAINS_S = 10.0
Answer = dict[str, Any]
logger = logging.getLogger("headrace.host")


class Cluster(Protocol):
    """What this needs of the cluster. Each raises ClusterError where there is no answer in time."""

    def rollouts(self) -> list[RolloutAccount]: ...

    def begin_rollout(self, model: str, terms: RolloutTerms) -> int: ...

    def promote(self, model: str) -> bool: ...

    def finish_rollout(self, model: str) -> bool: ...

    def abort_rollout(self, model: str, why: str) -> bool: ...

    def cannot_start(self, names: Collection[str]) -> dict[str, str]: ...

    def runs(self, name: str) -> bool: ...

    def held(self, name: str) -> int: ...

    def forget(self, name: str) -> None: ...


class Live(Protocol):
    """What runs (`Reconfiguration`); written only by who holds `lock`."""

    deployed: Deployed
    lock: Any
    records: RolloutRecords

    @property
    def settings(self) -> Settings: ...

    def put(self, wanted: Deployed) -> None: ...

    def adopt(self, deployed: Deployed) -> None: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """By hand. why: of an abort; "" asks for the promotion."""

    why: str = ""

    @property
    def aborts(self) -> bool:
        return bool(self.why)


class RolloutDriver:
    """`clock`: of the canaries' `since_s`."""

    def __init__(
        self, live: Live, cluster: Cluster, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._live = live
        self._cluster = cluster
        self._clock = clock
        self._records = live.records
        self._asked: dict[str, tuple[int, Asked]] = {}  # by model, with its canary's number
        self._steps: dict[str, Callable[[Canary, RolloutAccount | None], None]] = {
            "judged": self._judge,
            "promoting": self._promote,
            "leaving": self._leave,
        }

    # ---- asked by people ----------------------------------------------------------------------

    def rollouts(self, request: Answer) -> Answer:
        """All that are under way, and the last one of each model that ended."""
        return {"rollouts": self._records.listing(self._live.deployed)}

    def promote(self, request: Answer) -> Answer:
        """At once, whatever is still to be seen of it."""
        return self._decide(request, Asked())

    def abort(self, request: Answer) -> Answer:
        return self._decide(request, Asked(str(request.get("reason") or "") or "ended by hand"))

    def _decide(self, request: Answer, asked: Asked) -> Answer:
        """What a registry that has just started anew does not know yet is told it later."""
        name, deployed = str(request.get("model", "")), self._live.deployed
        if wrong := self._records.undecided(deployed, name):
            return {"error": wrong}
        canary = deployed.canaries[name]
        if self._decided(canary, asked) or not (
            self._tell(name, asked) or self._is_unknown(canary.rollout)
        ):
            return {"error": f"the rollout of {name} is decided already"}
        self._asked[name] = canary.number, asked
        return {"model": name}

    def _decided(self, canary: Canary, asked: Asked) -> bool:
        """By what the host knows; one that is being promoted may still be aborted."""
        number, before = self._asked.get(canary.model, (0, Asked()))
        aborted = number == canary.number and before.aborts
        return aborted or (not asked.aborts and canary.stage != "judged")

    def _tell(self, model: str, asked: Asked) -> bool:
        """False where the registry has decided already, or does not know of the rollout."""
        if asked.aborts:
            return self._cluster.abort_rollout(model, asked.why)
        return self._cluster.promote(model)

    def _is_unknown(self, number: int | None) -> bool:
        return number not in [account["number"] for account in self._cluster.rollouts()]

    def _told_again(self, canary: Canary) -> bool:
        """What people asked for, which a registry may have lost; whether it had."""
        number, asked = self._asked.get(canary.model, (0, Asked()))
        return number == canary.number and self._tell(canary.model, asked)

    # ---- driven by time -----------------------------------------------------------------------

    def tick(self) -> None:
        """Looks at all canaries once. Raises ClusterError where the cluster does not answer; what
        was not done is done by the next one."""
        if not self._live.deployed.canaries:
            return
        accounts = {account["model"]: account for account in self._cluster.rollouts()}
        self._note(accounts)
        if not self._live.lock.acquire(blocking=False):
            return  # a file is being applied: nothing goes on beside that
        try:
            self._step_all(accounts)
        finally:
            self._live.lock.release()

    def _step_all(self, accounts: Mapping[str, RolloutAccount]) -> None:
        """One that cannot be carried out keeps none of the others; its fault is raised at the
        end."""
        fault: ClusterError | None = None
        for canary in list(self._live.deployed.canaries.values()):
            try:
                self._steps[canary.stage](canary, _its_own(canary, accounts))
            except ClusterError as silence:
                fault = silence
        if fault is not None:
            raise fault

    def _note(self, accounts: Mapping[str, RolloutAccount]) -> None:
        """So that who looks sees them go on while a file is being applied."""
        for canary in self._live.deployed.canaries.values():
            account = _its_own(canary, accounts)
            if account is not None and canary.undecided:
                self._records.note(canary, account)

    def _judge(self, canary: Canary, account: RolloutAccount | None) -> None:
        if account is None:
            self._begin(replace(canary, since_s=self._clock()))
            self._told_again(canary)
        elif account["phase"] == "aborted":
            self._end(canary, account["why"])
        elif account["phase"] == "promoting":
            placed = replace(canary, stage="promoting", since_s=self._clock())
            self._live.put(self._live.deployed.having(placed))
        elif self._told_again(canary):
            return
        elif account["phase"] == "checking" and self._late(canary):
            limit_s = canary.settings.replicas.start_timeout_s
            self._cluster.abort_rollout(canary.model, f"it was not ready within {limit_s:g} s")

    def _begin(self, canary: Canary) -> None:
        """Anew, where the registry has lost it."""
        number = self._cluster.begin_rollout(canary.model, canary.terms)
        self._live.deployed = self._live.deployed.having(replace(canary, rollout=number))

    def _late(self, canary: Canary) -> bool:
        return self._clock() - canary.since_s > canary.settings.replicas.start_timeout_s

    def _promote(self, canary: Canary, account: RolloutAccount | None) -> None:
        """The new settings are put in the live version's place, and it starts there."""
        if account is None:
            self._begin(canary)
            self._cluster.promote(canary.model)
            self._told_again(canary)
        elif account["phase"] == "aborted":
            self._put_back(canary, account["why"])
        elif account["phase"] == "promoted":
            self._end(canary)
        elif self._told_again(canary):
            return
        elif why := self._failure(canary):
            why = f"it does not run in the live version's place: {why}"
            self._cluster.abort_rollout(canary.model, why)
            self._put_back(canary, why)
        elif self._cluster.runs(canary.model) and self._cluster.finish_rollout(canary.model):
            self._end(canary)

    def _failure(self, canary: Canary) -> str:
        found = self._cluster.cannot_start([canary.model]).get(canary.model, "")
        if found or not self._late(canary) or self._cluster.runs(canary.model):
            return found
        return f"not ready after {canary.settings.replicas.start_timeout_s:g} s"

    def _put_back(self, canary: Canary, why: str) -> None:
        """What is put as it leaves has the live version's settings again."""
        self._live.put(self._live.deployed.having(leaving(canary, self._clock())))
        self._end(canary, why)

    def _end(self, canary: Canary, why: str = "") -> None:
        """Aborted if there is a reason, else promoted."""
        now, before = self._clock(), self._live.settings
        if why:
            self._live.deployed = self._live.deployed.having(leaving(canary, now))
        else:
            self._live.adopt(self._live.deployed.promoted(canary, now))
        self._records.end(canary, why, before, self._live.settings)

    def _leave(self, canary: Canary, account: RolloutAccount | None) -> None:
        waited_s = self._clock() - canary.since_s
        if waited_s < _HEARD_S:
            return
        if waited_s < _DRAINS_S and self._cluster.held(canary.name):
            return
        self._live.put(self._live.deployed.lacking(canary.model))
        self._cluster.forget(canary.name)


def _its_own(canary: Canary, accounts: Mapping[str, RolloutAccount]) -> RolloutAccount | None:
    """Not that of an earlier canary of the model."""
    found = accounts.get(canary.model)
    return found if found is not None and found["number"] == canary.rollout else None


def drive(driver: RolloutDriver, wait: Callable[[], bool]) -> None:
    """Until `wait`, which waits a moment, says that the server stops."""
    silent = False
    while not wait():
        try:
            driver.tick()
            silent = False
        except Exception as fault:
            # The next look asks again; a silence that lasts is said once.
            if not silent:
                logger.warning("rollouts wait for the cluster: %s: %s", type(fault).__name__, fault)
            silent = True
