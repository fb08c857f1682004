"""Another settings file for a running server: what differs, what is put, what is taken back.

A model that cannot start is taken back alone: it goes on as it was, or stays away, and everything
else is as the new file says. One that has a `rollout` stays as it is, and its new version starts
beside it as a canary, which the registry and the rollout driver then see to. Gateways take up
tenants as they are published; a gateway's own settings cannot change while it runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from deployments.contract.rollout.account import RolloutAccount
from deployments.contract.rollout.terms import RolloutTerms, canary_of, model_of
from deployments.control.dashboard import ClusterError
from deployments.control.deployed import Canary, Deployed
from deployments.control.rollout_plan import Plan, planned
from deployments.control.rollout_records import RolloutRecords
from deployments.control.scaling.scaling_terms import scaling_document
from deployments.control.serve_config import serve_config
from deployments.control.settings_changes import changes_between, fields_changed, switched
from deployments.control.source_folders import relative_to
from deployments.control.version_history import VersionHistory, with_numbers_of
from deployments.settings.load import SettingsErrors, load, tenants_text, with_address
from deployments.settings.tree import Settings

OPENS = (
    "no tenant has a list of keys any more, which would let everybody in; if that is meant, set "
    "gateway.auth: open, stop and serve again"
)
logger = logging.getLogger("headrace.host")


class Cluster(Protocol):
    """What this needs of the cluster."""

    def publish_tenants(self, text: str) -> None: ...

    def freeze(self, frozen: bool) -> None: ...

    def frozen(self) -> bool | None: ...

    def publish_scaling(self, text: str) -> None: ...

    def put(self, config: dict[str, Any]) -> None: ...

    def settle(
        self, settings: Settings, changed: Collection[str], stop: threading.Event
    ) -> dict[str, str]: ...

    def begin_rollout(self, model: str, terms: RolloutTerms) -> int: ...

    def abort_rollout(self, model: str, why: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a server's first settings came from."""

    folder: Path  # of the file: paths are as written there
    address: Mapping[str, Any] = field(default_factory=dict)  # host and port, if the command line
    # gave them: they hold whatever a file says
    chosen: Mapping[str, int] = field(default_factory=dict)  # ports, where a file names none

    def completed(self, settings: Settings) -> Settings:
        """A file's settings, as this server runs them. Raises SettingsErrors."""
        named = settings.gateway.model_fields_set
        chosen = {name: port for name, port in self.chosen.items() if name not in named}
        return with_address(settings, chosen | dict(self.address))


class Reconfiguration:
    """Of one running server: `deployed` is what it runs now, with paths as written in `origin`.
    Calls that change it must come one at a time: whoever makes one holds `lock`."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        origin: Origin,
        stop: threading.Event,
        records: RolloutRecords | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.deployed = Deployed(settings)
        self.lock = threading.Lock()
        self.records = records or RolloutRecords()
        self._history = VersionHistory()
        self._numbers = count(1)
        self._cluster = cluster
        self._origin = origin
        self._stop = stop
        self._clock = clock

    @property
    def settings(self) -> Settings:
        """Of the live versions."""
        return self.deployed.settings

    def start(self) -> None:
        """Puts what it runs, and does not wait."""
        self._publish(self.settings)
        self._put(self.deployed)

    def diff(self, request: dict[str, Any]) -> dict[str, Any]:
        """What `apply` of that file would do."""
        new = self._loaded(request)
        return {"error": new} if isinstance(new, str) else self._planned(new, count()).changes

    def apply(self, request: dict[str, Any]) -> dict[str, Any]:
        """Loads the file, refuses what cannot change while running, and puts the whole list; begins
        the rollouts of what goes by a canary. `rollouts`: their numbers, and of those that go on,
        by model. `optional`: models that were started and not waited for."""
        new = self._loaded(request)
        if isinstance(new, str):
            return {"error": new}
        plan = self._planned(new, self._numbers)
        before = self.deployed
        for name, why in plan.ended.items():
            self._told(self._cluster.abort_rollout, name, why)
        self._publish(plan.wanted.settings)
        with self.records.starting({n: plan.wanted.canaries[n] for n in plan.begun}):
            failed = self._carry_out(plan.wanted)
        lost = {n: failed[n] for n in plan.kept if n not in self.deployed.canaries}
        for name, why in {**plan.ended, **lost}.items():
            self.records.end(before.canaries[name], why, before.settings, self.settings)
        begun = [name for name in plan.begun if name in self.deployed.canaries]
        for name in begun:
            self.begin_rollout(name)
        if failed:
            lines = [*taken_back(self.settings, failed), *(f"{n}: rollout began" for n in begun)]
            return {"error": "\n".join(lines)}
        under_way = {n: self.deployed.canaries[n].number for n in (*begun, *plan.kept)}
        started = (*plan.changes["added"], *plan.changes["restarted"])
        optional = [name for name in started if self.settings.models[name].optional]
        return plan.changes | {"rollouts": under_way, "optional": optional}

    def _planned(self, new: Settings, numbers: count[int]) -> Plan:
        plan = planned(self.deployed, new, self._clock(), numbers)
        turned = switched(self._is_frozen(), new.controllers.frozen)
        return replace(plan, changes={**plan.changes, "controllers": turned})

    def _carry_out(self, wanted: Deployed, back: str = "") -> dict[str, str]:
        """Puts it, and takes back what does not start; why, by model. `back`: the model that is to
        have its last version again."""
        before, listed = self.deployed, wanted.listed()
        changes = changes_between(before.listed(), listed)
        touched = [*changes["added"], *changes["restarted"], *changes["updated"]]
        touched = [name for name in touched if not listed.models[name].optional]
        self._put(wanted)
        failed = self._cluster.settle(listed, touched, self._stop)
        if failed:
            wanted = without(before, wanted, failed)
            self._put(wanted)
            self._cluster.settle(wanted.listed(), [], self._stop)
        self._adopt(wanted, back)
        return {model_of(name): why for name, why in failed.items()}

    def _adopt(self, deployed: Deployed, back: str = "") -> None:
        """What runs now, and is good."""
        self._history.changed(self.settings, deployed.settings, back)
        self.deployed = deployed

    # ---- for the rollout driver, see its `Live` ------------------------------------------------

    @property
    def canaries(self) -> Mapping[str, Canary]:
        return self.deployed.canaries

    def note(self, canary: Canary, account: RolloutAccount) -> None:
        self.records.note(canary, account)

    def keep(self, canary: Canary) -> None:
        self.deployed = self.deployed.having(canary)

    def replace_live(self, canary: Canary) -> None:
        self._put_and_keep(self.deployed.having(canary))

    def put_back(self, canary: Canary, why: str) -> None:
        self._put_and_keep(self.deployed.having(canary))  # of one that leaves nothing replaces it
        self.end(canary, why)

    def end(self, canary: Canary, why: str) -> None:
        before = self.settings
        if why:
            self.keep(canary)
        else:
            self._adopt(self.deployed.promoted(canary))
        self.records.end(canary, why, before, self.settings)

    def remove(self, canary: Canary) -> None:
        self._put_and_keep(self.deployed.lacking(canary.model))

    def _put_and_keep(self, wanted: Deployed) -> None:
        """Makes Serve run that from now on, and does not wait."""
        self._put(wanted)
        self.deployed = wanted

    def begin_rollout(self, model: str) -> None:
        """Of a canary that runs. Where the registry does not answer, the driver asks again."""
        canary = self.deployed.canaries[model]
        number = self._told(self._cluster.begin_rollout, model, canary.terms)
        if number is not None:
            begun = replace(canary, rollout=number, since_s=self._clock())
            self.deployed = self.deployed.having(begun)

    def _told(self, method: Callable[..., Any], *args: Any) -> Any:
        """The registry's answer; None, and a line, where it has none."""
        try:
            return method(*args)
        except ClusterError as silence:
            logger.warning("%s", silence)
            return None

    def rollback(self, request: dict[str, Any]) -> dict[str, Any]:
        """Puts the version of a model that ran before the present one, at once; each time one
        further back."""
        name = str(request.get("model", ""))
        if wrong := self._cannot_go_back(name):
            return {"error": wrong}
        present, last = self.settings.models[name], self._history.last(name)
        assert last is not None
        models = {**self.settings.models, name: with_numbers_of(last, present)}
        new = self.settings.model_copy(update={"models": models})
        try:
            Settings.model_validate(new.model_dump(mode="json", exclude_unset=True))
        except ValueError as wrong_now:
            return {"error": f"the version before does not go with the rest: {wrong_now}"}
        changes = changes_between(self.settings, new)
        failed = self._carry_out(replace(self.deployed, settings=new), back=name)
        if failed:
            return {"error": "\n".join(taken_back(self.settings, failed))}
        return changes | {"rolled back": [name], "left": self._history.left(name)}

    def _cannot_go_back(self, name: str) -> str:
        if name not in self.settings.models:
            return f"no model {name!r}; there are: {', '.join(self.settings.models)}"
        canary = self.deployed.canaries.get(name)
        if canary is not None and canary.undecided:
            return (
                f"a new version of {name} is being rolled out, the live one has not changed; "
                f"`headrace rollout abort {name}` ends it"
            )
        if self._history.last(name) is None:
            return (
                f"no other version of {name} has run that is known: a server that starts begins "
                "with its file"
            )
        return ""

    def _loaded(self, request: dict[str, Any]) -> Settings | str:
        """The new settings, or why they cannot be had."""
        path = Path(request["path"])
        try:
            new = self._origin.completed(load(path, absolute=False))
        except SettingsErrors as wrong:
            return str(wrong)
        gateway = self.settings.gateway
        if fixed := fields_changed(gateway, new.gateway, "gateway"):
            refusal = "gateway settings cannot change while it runs; stop and serve again:"
            return "\n  ".join([refusal, *fixed])
        if gateway.auth is None and self.settings.lists_keys and not new.lists_keys:
            return OPENS
        new = new.model_copy(update={"gateway": gateway})
        return relative_to(new, path.absolute().parent, self._origin.folder)

    def freeze(self, request: dict[str, Any]) -> dict[str, Any]:
        """Until it is asked for the opposite, or a file is applied: then that one holds. Changes
        nothing that `lock` is for."""
        if self.settings.gateway.tenants_path is not None:
            where = self.settings.gateway.tenants_path
            return {"error": f"{where} says what is frozen: set controllers.frozen there"}
        was = self._is_frozen()
        self._cluster.freeze(request["frozen"])
        return {"controllers": switched(was, request["frozen"])}

    def _is_frozen(self) -> bool:
        said = self._cluster.frozen()
        return self.settings.controllers.frozen if said is None else said

    def _publish(self, settings: Settings) -> None:
        """The tenants, and the switch as the file has it: where a file is taken up and nowhere
        else, so that no step of a rollout takes back what an operator has set since."""
        if settings.gateway.tenants_path is None:
            self._cluster.publish_tenants(tenants_text(settings))

    def _put(self, wanted: Deployed) -> None:
        new = wanted.listed()
        self._cluster.publish_scaling(scaling_document(new).text())
        self._cluster.put(serve_config(new, one_machine=True))


def without(old: Deployed, new: Deployed, failed: Collection[str]) -> Deployed:
    """`new`, but a failed model is what it was before, or not there; a failed canary is not."""
    was = {name: old.settings.models[name] for name in failed if name in old.settings.models}
    models = {n: m for n, m in new.settings.models.items() if n not in failed}
    settings = new.settings.model_copy(update={"models": models | was})
    canaries = {n: c for n, c in new.canaries.items() if canary_of(n) not in failed}
    return Deployed(settings, canaries)


def taken_back(kept: Settings, failed: Mapping[str, str]) -> Iterator[str]:
    """What to say of models that failed, by name and reason; `kept` is what runs now."""
    for name, reason in failed.items():
        left = "goes on as it was" if name in kept.models else "was left out"
        yield f"model {name} cannot start and {left}: {reason}"
    yield "everything else is as the file says"
