"""What runs on a cluster, for the rollout driver: read from Serve's list, and changed by lists.

Each change reads the list anew and puts it at once, so that it loses nothing that was deployed
since the last look. What must be known of a rollout stands in the list; only the time since which a
canary is in its stage is remembered here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from deployments.contract.rollout.account import RolloutAccount, RolloutRecord
from deployments.control import listed_rollouts
from deployments.control.deployed import Canary
from deployments.control.differences import Applications
from deployments.control.listed_rollouts import Entries, ListedRollout, entries_of, with_entry
from deployments.control.listed_versions import with_version, without_canary
from deployments.control.merging import beside_others, ours
from deployments.control.rollout_driver import Cluster
from deployments.control.rollout_records import end_sentence
from deployments.process import audit
from deployments.process.audit import AuditLine
from deployments.settings.load import settings_digest
from deployments.settings.model import ModelSettings

_ListChange = Callable[[Applications, ListedRollout], Applications]
logger = logging.getLogger("headrace.rollouts")


class Served(Cluster, Protocol):
    """What this needs of the cluster (`ServedModels`)."""

    def details(self) -> dict[str, Any]: ...

    def put(self, config: dict[str, Any]) -> None: ...

    def follow(self, applications: Applications) -> None: ...


class ListedLive:
    """See `rollout_driver.Live`. Methods raise ClusterError."""

    def __init__(self, served: Served, clock: Callable[[], float]) -> None:
        self.lock = threading.Lock()
        self._served = served
        self._clock = clock
        self._entries: Entries = {}
        self.canaries: Mapping[str, Canary] = {}
        self._since: dict[tuple[str, int, str], float] = {}  # by model, canary's number and stage

    def look(self) -> Entries:
        """Read the list. Returns the rollouts whose canaries are there."""
        applications = ours(self._served.details())
        self._served.follow(applications)
        self._take(applications)
        return self._entries

    def _take(self, applications: Applications) -> None:
        found = entries_of(applications)
        self._entries = {n: entry for n, entry in found.items() if entry["stage"] != "over"}
        self.canaries = {name: self._canary(name, entry) for name, entry in self._entries.items()}

    def _canary(self, model: str, entry: ListedRollout) -> Canary:
        number, stage = entry["id"], entry["stage"]
        assert stage != "over"
        since_s = self._since.setdefault((model, number, stage), self._clock())
        settings = ModelSettings.model_validate(entry["settings"])
        return Canary(model, settings, number, since_s, stage, entry["rollout"])

    def note(self, canary: Canary, account: RolloutAccount) -> None:
        """Writes into the list only what has changed since the last step."""
        known = self._entries.get(canary.model)
        if known is None or _step(known["record"]) == _step(account):
            return
        noted = RolloutRecord(**account, id=canary.number, over=False)
        self._change(canary, lambda entry: {**entry, "record": noted})

    def keep(self, canary: Canary) -> None:
        self._change(canary, lambda entry: _as_of(entry, canary))

    def replace_live(self, canary: Canary) -> None:
        self._change(
            canary,
            lambda entry: _as_of(entry, canary),
            lambda listed, entry: with_version(listed, canary.model, entry["new"]),
        )

    def put_back(self, canary: Canary, why: str) -> None:
        self._end(canary, why, lambda listed, e: with_version(listed, canary.model, e["old"]))

    def end(self, canary: Canary, why: str) -> None:
        self._end(canary, why)

    def _end(self, canary: Canary, why: str, then: _ListChange | None = None) -> None:
        """One list has the end and what follows from it: whoever goes on finds both or neither."""
        entry = self._entries.get(canary.model)
        ended = self._change(canary, lambda entry: listed_rollouts.ended(entry, why), then)
        if ended and entry is not None:
            _tell_end(canary.model, entry, why)

    def remove(self, canary: Canary) -> None:
        self._change(
            canary,
            listed_rollouts.over,
            lambda listed, entry: without_canary(listed, canary.model),
            ended=True,
        )

    def _change(
        self,
        canary: Canary,
        change: Callable[[ListedRollout], ListedRollout],
        then: _ListChange | None = None,
        *,
        ended: bool = False,
    ) -> bool:
        """Put the present list with this canary's entry changed, and with what follows for others
        from the entry as it was (`then`). False, and nothing happens, if a file that was deployed
        since the last look has begun another rollout of the model, or ended this one. `ended`: its
        end is written already."""
        details = self._served.details()
        listed = ours(details)
        found = entries_of(listed).get(canary.model)
        if found is None or found["id"] != canary.number or found["record"]["over"] != ended:
            return False
        changed: Applications = with_entry(listed, canary.model, change(found))
        if then is not None:
            changed = then(changed, found)
        self._since[canary.model, canary.number, canary.stage] = canary.since_s
        self._served.put(beside_others(changed.values(), details))
        self._take(changed)
        return True


def _step(record: RolloutAccount) -> tuple[str, int]:
    return record["phase"], record["step"]


def _as_of(entry: ListedRollout, canary: Canary) -> ListedRollout:
    return {**entry, "stage": canary.stage, "rollout": canary.rollout}


def _tell_end(model: str, entry: ListedRollout, why: str) -> None:
    """Log and audit the end: aborted if there is a reason, else promoted."""
    how = "aborted" if why else "promoted"
    logger.warning("%s", end_sentence(model, how, why))
    before = settings_digest(entry["old"]["application"])
    after = before if why else settings_digest(entry["new"]["application"])
    audit.record(
        AuditLine(
            "rollout", how, f"model {model}", "Serve's list of applications",
            before, after, detail=why,
        )
    )  # fmt: skip
