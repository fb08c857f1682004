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

from deployments.contract.rollout.account import RolloutAccount
from deployments.contract.rollout.terms import RolloutTerms
from deployments.control.dashboard import ClusterError
from deployments.control.deployed import Canary, leaving
from deployments.control.rollout_reasons import ANOTHER

_HEARD_S = 2.0  # gateways hear of the end, and say what they have, within this
_DRAINS_S = 10.0
_ENDED = ("aborted", "promoted")  # phases of an account
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
    """What runs, with the canaries. Methods that change it are called by whoever holds `lock`."""

    lock: Any

    @property
    def canaries(self) -> Mapping[str, Canary]: ...

    def note(self, canary: Canary, account: RolloutAccount) -> None:
        """Take in how far the rollout has come."""

    def keep(self, canary: Canary) -> None:
        """Remember the canary's new state; Serve's list stays as it is."""

    def replace_live(self, canary: Canary) -> None:
        """Remember it, and put the list with its settings in the live version's place."""

    def put_back(self, canary: Canary, why: str) -> None:
        """As `end` with a reason, of a canary that has replaced the live version: put the list with
        the live version's settings again."""

    def end(self, canary: Canary, why: str) -> None:
        """The rollout has ended, and the canary is leaving: aborted if there is a reason, else
        promoted."""

    def remove(self, canary: Canary) -> None:
        """Put the list without the canary."""


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
        self._asked: dict[str, tuple[int, Asked]] = {}  # by model, with its canary's number
        self._steps: dict[str, Callable[[Canary, RolloutAccount | None], None]] = {
            "starting": self._start,
            "judged": self._judge,
            "promoting": self._promote,
            "leaving": self._leave,
        }

    def ask(self, canary: Canary, asked: Asked) -> None:
        """Tell the registry this until it has decided: it may lose what it is told."""
        self._asked[canary.model] = canary.number, asked

    def asked(self, canary: Canary) -> Asked | None:
        """What people asked for of this canary."""
        number, asked = self._asked.get(canary.model, (0, None))
        return asked if number == canary.number else None

    def tell(self, model: str, asked: Asked) -> bool:
        """False where the registry has decided already, or does not know of the rollout."""
        if asked.aborts:
            return self._cluster.abort_rollout(model, asked.why)
        return self._cluster.promote(model)

    def _told_again(self, canary: Canary) -> bool:
        """What people asked for, which a registry may have lost; whether it had."""
        asked = self.asked(canary)
        return asked is not None and self.tell(canary.model, asked)

    def tick(self) -> None:
        """Looks at all canaries once. Raises ClusterError where the cluster does not answer; what
        was not done is done by the next one."""
        if not self._live.canaries:
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
        for canary in list(self._live.canaries.values()):
            try:
                self._steps[canary.stage](canary, _its_own(canary, accounts))
            except ClusterError as silence:
                fault = silence
        if fault is not None:
            raise fault

    def _note(self, accounts: Mapping[str, RolloutAccount]) -> None:
        """So that who looks sees them go on while a file is being applied."""
        for canary in self._live.canaries.values():
            account = _its_own(canary, accounts)
            if account is not None and canary.undecided:
                self._live.note(canary, account)

    def _start(self, canary: Canary, account: RolloutAccount | None) -> None:
        """A rollout that the registry still has is of an earlier canary of the model."""
        self._cluster.abort_rollout(canary.model, ANOTHER)
        asked = self.asked(canary)
        if asked is not None and asked.aborts:
            self._end(canary, asked.why)
        elif why := self._failure(canary.name, canary):
            self._end(canary, f"its canary cannot start: {why}")
        elif self._cluster.runs(canary.name):
            self._begin(replace(canary, stage="judged", since_s=self._clock()))

    def _judge(self, canary: Canary, account: RolloutAccount | None) -> None:
        if account is None:
            self._begin(replace(canary, since_s=self._clock()))
            self._told_again(canary)
        elif account["phase"] == "aborted":
            self._end(canary, account["why"])
        elif account["phase"] == "promoting":
            self._live.replace_live(replace(canary, stage="promoting", since_s=self._clock()))
        elif account["phase"] == "promoted":
            self._begin(replace(canary, since_s=self._clock()))
            self._cluster.promote(canary.model)  # it was, but another list undid it
        elif self._told_again(canary):
            return
        elif account["phase"] == "checking" and self._late(canary):
            limit_s = canary.settings.replicas.start_timeout_s
            self._cluster.abort_rollout(canary.model, f"it was not ready within {limit_s:g} s")

    def _begin(self, canary: Canary) -> None:
        """Anew, where the registry has lost it."""
        number = self._cluster.begin_rollout(canary.model, canary.terms)
        self._live.keep(replace(canary, rollout=number))

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
        elif why := self._failure(canary.model, canary):
            why = f"it does not run in the live version's place: {why}"
            self._cluster.abort_rollout(canary.model, why)
            self._put_back(canary, why)
        elif self._cluster.runs(canary.model) and self._cluster.finish_rollout(canary.model):
            self._end(canary)

    def _failure(self, name: str, canary: Canary) -> str:
        """Why the canary's version cannot start as the model of this name; "" if it may yet."""
        found = self._cluster.cannot_start([name]).get(name, "")
        if found or not self._late(canary) or self._cluster.runs(name):
            return found
        return f"not ready after {canary.settings.replicas.start_timeout_s:g} s"

    def _put_back(self, canary: Canary, why: str) -> None:
        self._live.put_back(leaving(canary, self._clock()), why)

    def _end(self, canary: Canary, why: str = "") -> None:
        """Aborted if there is a reason, else promoted."""
        self._live.end(leaving(canary, self._clock()), why)

    def _leave(self, canary: Canary, account: RolloutAccount | None) -> None:
        if account is not None and account["phase"] not in _ENDED:
            self._cluster.abort_rollout(canary.model, "its canary is leaving")
        waited_s = self._clock() - canary.since_s
        if waited_s < _HEARD_S:
            return
        if waited_s < _DRAINS_S and self._cluster.held(canary.name):
            return
        self._live.remove(canary)
        self._cluster.forget(canary.name)


def _its_own(canary: Canary, accounts: Mapping[str, RolloutAccount]) -> RolloutAccount | None:
    """Not that of an earlier canary of the model."""
    found = accounts.get(canary.model)
    return found if found is not None and found["number"] == canary.rollout else None


class Ticks(Protocol):
    """What `drive` calls about once a second."""

    def tick(self) -> None: ...


def drive(driver: Ticks, wait: Callable[[], bool]) -> None:
    """Ticks until `wait`, which waits a moment, says that the server stops."""
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
