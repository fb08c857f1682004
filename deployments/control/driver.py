"""Drives the changes of models' versions from Serve's list: starts, judges, promotes, takes back.

    replacing ─ runs ───────────────────────────────► over: the old version goes into the history
        └────── cannot start ───────────────────────► over: the old version is put back
    starting ─ runs ─► judged ─ promoted ─► promoting ─ runs ─► leaving ─ drained ─► over
        └─ cannot start ──┴─ aborted ──────────┴─ cannot start ───┘

It runs about once a second on its own thread. It asks the registry, reads the list and puts the
next list, while no deployer holds a lease of it. The list holds the whole state except the time
since a version entered its stage, so the driver may be replaced at any time. A restarted registry
knows no rollouts: the driver begins them again and repeats what people asked for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace as changed

from deployments.contract.listed import Entry, Version
from deployments.contract.rollout.account import RolloutAccount, RolloutRecord
from deployments.contract.rollout.terms import RolloutTerms, canary_of
from deployments.control.application_list import AppList, beside_others, ours
from deployments.control.dashboard import ClusterError
from deployments.control.plan import ANOTHER, STILL_IN_FILE, ended, is_canary, over, terms_of
from deployments.control.served_models import ServedModels
from deployments.control.writing import GAP_S
from deployments.process import audit
from deployments.process.audit import AuditLine
from deployments.settings.model import ModelSettings
from deployments.settings.plain import settings_digest

_HEARD_S = 2.0  # gateways hear of the end, and say what they have, within this
# A canary goes once the gateways have answered what they had for it, or after this.
_DRAINS_S = 10.0
_ENDED = ("aborted", "promoted")  # phases of an account
_SOURCE = "Serve's list of applications"
logger = logging.getLogger("headrace.rollouts")


@dataclass(frozen=True, slots=True)
class _Model:
    """One model whose version changes."""

    name: str
    entry: Entry
    settings: ModelSettings | None  # of the new version
    account: RolloutAccount | None  # the registry's, of this rollout and no earlier one
    since_s: float  # it has been in this stage

    @property
    def canary(self) -> str:
        return canary_of(self.name)

    @property
    def terms(self) -> RolloutTerms:
        assert self.settings is not None
        return terms_of(self.settings)

    @property
    def limit_s(self) -> float:
        """Seconds that the new version has to start."""
        return 60.0 if self.settings is None else self.settings.replicas.start_timeout_s


class Driver:
    """`tick` looks at all models once. Raises ClusterError where there is no answer in time.
    `clock`: monotonic seconds."""

    def __init__(self, served: ServedModels, clock: Callable[[], float] = time.monotonic) -> None:
        self._served = served
        self._clock = clock
        self._since: dict[tuple[str, int, str], float] = {}  # by model, entry's id and stage
        self._last = AppList()  # the list with the highest revision
        self._ends: list[tuple[str, Entry, str]] = []  # to be told once the list is put
        self._sent: AppList | None = None  # was put, and the answer of Serve never came
        self._steps: dict[str, Callable[[_Model, AppList], AppList]] = {
            "replacing": self._replace, "starting": self._start, "judged": self._judge,
            "promoting": self._promote, "leaving": self._leave,
        }  # fmt: skip

    def tick(self) -> None:
        """Raises ClusterError where the cluster does not answer; the next tick does what this one
        did not."""
        asked, details = self._clock(), self._served.details()
        listed = AppList.of(ours(details))
        if self._sent is not None and listed.control == self._sent.control:
            self._put_done(listed)
        self._sent = None
        self._ends.clear()
        if listed.own is None or self._undo_stale(listed, details):
            return
        self._served.follow(listed.applications)
        busy = {n: each for n, each in listed.entries.items() if each.stage != "over"}
        known = {(name, each.id, each.stage) for name, each in busy.items()}
        self._since = {key: at for key, at in self._since.items() if key in known}
        if not busy or listed.control.lease is not None:
            return
        accounts = {account["model"]: account for account in self._served.rollouts()}
        follows, fault = listed, None
        for name, entry in busy.items():
            model = self._model(name, entry, accounts.get(name))
            try:
                follows = self._steps[entry.stage](model, self._with_record(model, follows))
            except ClusterError as silence:  # the others go on
                fault = silence
        if follows is not listed and (fresh := self._unchanged(listed, details, asked)) is not None:
            self._put(follows, fresh)
        if fault is not None:
            raise fault

    def _unchanged(
        self, listed: AppList, details: Mapping[str, Any], asked: float
    ) -> Mapping[str, Any] | None:
        """Serve's details, just read, with this list still; None if it is another by now."""
        if self._clock() - asked <= GAP_S:
            return details
        # All those questions took long: a busy machine, on which the next look would be no faster.
        asked, details = self._clock(), self._served.details()
        is_late = self._clock() - asked > GAP_S
        return None if is_late or AppList.of(ours(details)) != listed else details

    def _model(self, name: str, entry: Entry, account: RolloutAccount | None) -> _Model:
        began = self._since.setdefault((name, entry.id, entry.stage), self._clock())
        settings = ModelSettings.model_validate(entry.settings) if entry.settings else None
        own = account if account is not None and account["number"] == entry.rollout else None
        return _Model(name, entry, settings, own, self._clock() - began)

    def _undo_stale(self, listed: AppList, details: Mapping[str, Any]) -> bool:
        """Whether the list was stale, and the last one was put again."""
        # A revision lower than one seen before is stale: a writer was late. A list without a
        # revision is an operator's own, and is taken as it is.
        revision, highest = listed.control.revision, self._last.control.revision
        if revision is None or highest is None or revision >= highest:
            self._last = listed
            return False
        late = listed.control.changes[-1:] or ("a writer unknown",)
        why = f"revision {revision} came after {highest}: {late[0]}"
        logger.warning("a list that was read earlier came late and is undone (%s)", why)
        audit.record(AuditLine("control", "undo", "the list of applications", _SOURCE, detail=why))
        self._put(self._last, details)
        return True

    def _put(self, follows: AppList, details: Mapping[str, Any]) -> None:
        follows = follows.with_control(revision=(self._last.control.revision or 0) + 1)
        self._sent = follows
        self._served.put(beside_others(follows.all().values(), details))
        self._put_done(follows)

    def _put_done(self, follows: AppList) -> None:
        self._last, self._sent = follows, None
        for name, entry, why in self._ends:
            _record_end(name, entry, why)

    # ---- the steps of one model; each returns the list that follows ----------------------------

    def _with_record(self, model: _Model, listed: AppList) -> AppList:
        """With the registry's account, if the rollout has taken a step."""
        account, entry = model.account, model.entry
        if account is None or entry.record is None or not is_canary(entry):
            return listed
        before = entry.record["phase"], entry.record["step"]
        if before == (account["phase"], account["step"]):
            return listed
        record = RolloutRecord(**account, id=entry.id, over=False)
        return listed.with_entry(model.name, changed(entry, record=record))

    def _replace(self, model: _Model, listed: AppList) -> AppList:
        listed = self._without_canary(model, listed)
        if listed.has(model.canary):
            return listed
        entry, name = listed.entries[model.name], model.name
        why = self._failure(name, model)
        optional = model.settings is not None and model.settings.optional
        if why and not optional and entry.old is not None:
            listed = listed.with_version(name, entry.old)
        elif why and not optional:
            if not self._served.cannot_start([name]):
                return listed  # a version that is late and replaces none goes on starting
            listed = listed.without_model(name)
        elif not why:
            if not self._served.runs(name):
                return listed
            listed = _succeeded(listed, name, entry)
        self._ends.append((name, entry, why))
        return listed.with_entry(name, over(changed(entry, why=why)))

    def _start(self, model: _Model, listed: AppList) -> AppList:
        """A rollout that the registry still has is of an earlier canary of the model."""
        self._served.abort_rollout(model.name, ANOTHER)
        if model.entry.asked:
            return self._end(model, listed, model.entry.asked)
        if why := self._failure(model.canary, model):
            return self._end(model, listed, f"its canary cannot start: {why}")
        if not self._served.runs(model.canary):
            return listed
        return self._begin(model, listed)

    def _begin(self, model: _Model, listed: AppList) -> AppList:
        """Anew, if the registry has lost it."""
        number = self._served.begin_rollout(model.name, model.terms)
        entry = listed.entries[model.name]
        stage = "judged" if entry.stage == "starting" else entry.stage
        self._since[model.name, entry.id, stage] = self._clock()
        if (number, stage) == (entry.rollout, entry.stage):
            return listed
        return listed.with_entry(model.name, changed(entry, rollout=number, stage=stage))

    def _judge(self, model: _Model, listed: AppList) -> AppList:
        account = model.account
        if account is None:
            begun = self._begin(model, listed)
            self._repeat_decision(model)
            return begun
        if account["phase"] == "aborted":
            return self._end(model, listed, account["why"])
        if account["phase"] == "promoting":  # the new version starts in the live one's place
            entry = changed(listed.entries[model.name], stage="promoting")
            return listed.with_version(model.name, _known(entry.new)).with_entry(model.name, entry)
        if account["phase"] == "promoted":  # it was, but another list undid it
            begun = self._begin(model, listed)
            self._served.promote(model.name)
            return begun
        if self._repeat_decision(model):
            return listed
        if account["phase"] == "checking" and model.since_s > model.limit_s:
            self._served.abort_rollout(model.name, f"it was not ready within {model.limit_s:g} s")
        return listed

    def _promote(self, model: _Model, listed: AppList) -> AppList:
        account = model.account
        if account is None:
            begun = self._begin(model, listed)
            self._served.promote(model.name)
            self._repeat_decision(model)
            return begun
        if account["phase"] == "aborted":
            return self._put_back(model, listed, account["why"])
        if account["phase"] == "promoted":
            return self._promoted(model, listed)
        if self._repeat_decision(model):
            return listed
        if why := self._failure(model.name, model):
            why = f"it does not run in the live version's place: {why}"
            self._served.abort_rollout(model.name, why)
            return self._put_back(model, listed, why)
        if self._served.runs(model.name) and self._served.finish_rollout(model.name):
            return self._promoted(model, listed)
        return listed

    def _promoted(self, model: _Model, listed: AppList) -> AppList:
        entry = listed.entries[model.name]
        return self._end(model, _succeeded(listed, model.name, entry), "")

    def _put_back(self, model: _Model, listed: AppList, why: str) -> AppList:
        old = _known(listed.entries[model.name].old)
        return self._end(model, listed.with_version(model.name, old), why)

    def _end(self, model: _Model, listed: AppList, why: str) -> AppList:
        """Aborted if there is a reason, else promoted."""
        entry = listed.entries[model.name]
        self._ends.append((model.name, entry, why))
        return listed.with_entry(model.name, ended(entry, why))

    def _leave(self, model: _Model, listed: AppList) -> AppList:
        left = self._without_canary(model, listed)
        if left.has(model.canary):
            return left
        return left.with_entry(model.name, over(left.entries[model.name]))

    def _without_canary(self, model: _Model, listed: AppList) -> AppList:
        """Without a canary that has no rollout any more, once it has answered what it has."""
        if not listed.has(model.canary):
            return listed
        account = model.account
        if account is not None and account["phase"] not in _ENDED:
            self._served.abort_rollout(model.name, "its canary is leaving")
        if model.since_s < _HEARD_S:
            return listed
        if model.since_s < _DRAINS_S and self._served.held(model.canary):
            return listed
        self._served.forget(model.canary)
        return listed.without_canary(model.name)

    # ---- what they share -----------------------------------------------------------------------

    def _repeat_decision(self, model: _Model) -> bool:
        """Tell the registry what people asked for, which it may have lost; whether it had."""
        asked = model.entry.asked
        if asked is None:
            return False
        if asked:
            return self._served.abort_rollout(model.name, asked)
        return self._served.promote(model.name)

    def _failure(self, name: str, model: _Model) -> str:
        """Why the new version cannot start as the model of this name; "" if it may yet."""
        found = self._served.cannot_start([name]).get(name, "")
        if found or model.since_s <= model.limit_s or self._served.runs(name):
            return found
        return f"not ready after {model.limit_s:g} s"


def _succeeded(listed: AppList, model: str, entry: Entry) -> AppList:
    """With the version that was replaced in the model's history; without the last one, if the model
    went back to it."""
    known = listed.history(model)
    if entry.back:
        return listed.with_history(model, known[:-1])
    return listed if entry.old is None else listed.with_history(model, (*known, entry.old))


def _known(version: Version | None) -> Version:
    assert version is not None  # of a rollout, which replaces a version that serves
    return version


def _record_end(model: str, entry: Entry, why: str) -> None:
    """Log and audit the end of a change: taken back or aborted if there is a reason."""
    replaced = entry.stage == "replacing"
    if replaced and not why:
        return  # the deployer's own line says it
    how = "taken back" if replaced else "aborted" if why else "promoted"
    if not why:
        said = f"rollout of {model}: promoted, the new version is the live one"
    elif replaced:
        said = f"model {model} cannot start and was taken back: {why} ({STILL_IN_FILE})"
    else:
        said = f"rollout of {model}: aborted, the live version goes on: {why} ({STILL_IN_FILE})"
    logger.warning("%s", said)
    before = "" if entry.old is None else settings_digest(entry.old.application)
    after = before if why or entry.new is None else settings_digest(entry.new.application)
    audit.record(AuditLine("rollout", how, f"model {model}", _SOURCE, before, after, detail=why))
