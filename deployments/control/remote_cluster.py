"""Changes what runs on a Ray cluster: plans with `plan`, and writes Serve's list with `writing`.

Over Serve's REST only: neither Ray nor a Headrace process on the head node is needed. What runs is
what Serve lists, and every change is another list. Putting the same list does not retry an
application whose last deployment failed, so such an application is deleted first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import yaml

from deployments.contract.app_names import ANCHOR_DEPLOYMENT, CONTROL_APP, GATEWAY_APP, model_app
from deployments.contract.description import adapters_by_hand
from deployments.contract.listed import Control
from deployments.contract.rollout.account import RolloutRecord
from deployments.control import plan
from deployments.control.application_list import (
    Applications,
    AppList,
    beside_others,
    by_name,
    changes,
    merged,
    ours,
    waiting_for_restart,
)
from deployments.control.dashboard import ClusterError, ServeRest
from deployments.control.plan import Deployment, applied
from deployments.control.scaling.decider import pin_complaint
from deployments.control.scaling.scaling_terms import published_scaling
from deployments.control.serve_config import serve_config
from deployments.control.writing import Writer
from deployments.process.code_version import code_version
from deployments.process.key_list import KeyRow, RevokedKey, key_rows, revoked_key
from deployments.settings.gateway import GatewaySettings
from deployments.settings.tree import Settings, TenantsSettings
from deployments.settings_files.load import parse_tenants

_RUNNING = "RUNNING"
_POLL_S = 1.0
_GONE_S = 3600.0  # draining there has shorter bounds of its own
_MESSAGE_LINES = 6


@dataclass(frozen=True, slots=True)
class ApplicationState:
    """One application, as Serve reports it."""

    name: str
    state: str  # as Serve names it
    running: int  # replicas, anchors not counted
    target: int  # replicas that are to run, anchors not counted
    message: str = ""  # Serve's, on the application or on deployments that are not healthy

    @property
    def failed(self) -> bool:
        return self.state == "DEPLOY_FAILED"

    def __str__(self) -> str:
        state = f"{self.name}: {self.state.lower()}, {self.running}/{self.target} replicas"
        return f"{state}\n  {self.message}" if self.message and not self.failed else state


class RemoteCluster:
    """`one_machine`: a server's own Ray, see `serve_config`. Tests may replace `pause`, which waits
    between two looks, and `clock`."""

    def __init__(
        self,
        rest: ServeRest,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        who: str = "",
        *,
        one_machine: bool = False,
    ) -> None:
        self._rest = rest
        self._one_machine = one_machine
        self._pause = pause
        self._clock = clock
        self._writer = Writer(rest, pause, clock, who)

    # ---- files ---------------------------------------------------------------------------------

    def diff(self, settings: Settings) -> Deployment:
        """What `deploy` would do. Raises ClusterError as `deploy` does."""
        details = self._rest.details()
        whole, found = self._planned(settings, details)
        merged(whole, details)
        return found

    def deploy(self, settings: Settings, *, settles: bool = True) -> Deployment:
        """Put Headrace's applications beside all others. Models that have a `rollout` change by a
        canary. Returns what that does to Headrace's. `settles`: look whether it stands; otherwise
        `watch` does, which must follow at once."""
        details = self._rest.details()
        config, deployment = self._planned(settings, details)
        merged(config, details)
        # Serve itself rebuilds what has changed, and does not try the rest again.
        if failed := _dead(details) - {each.application for each in deployment.differences}:
            self._delete(failed)

        def planned_anew(details: Mapping[str, Any]) -> dict[str, Any]:
            nonlocal deployment
            config, then = self._planned(settings, details)
            # What had failed is away by now: no difference to whoever deploys.
            deployment = replace(then, differences=deployment.differences)
            return merged(config, details)

        change = self._writer.change("apply", planned_anew, settles=settles)
        return replace(deployment, change=change)

    def _planned(
        self, settings: Settings, details: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Deployment]:
        """The config to put, without other people's applications, and what it does."""
        config = serve_config(settings, one_machine=self._one_machine)
        running, wanted = AppList.of(ours(details)), AppList.of(by_name(config))
        assert wanted.own is not None
        if self._one_machine:
            _check_gateway(running.applications, wanted.applications)
        wanted = replace(wanted, own={**wanted.own, "args": {"code": code_version()}})
        listed, deployment = applied(
            running, wanted, settings, _dead(details), one_machine=self._one_machine
        )
        apps = listed.all()
        if self._one_machine:  # its few processors are the models' first
            apps[CONTROL_APP] = apps.pop(CONTROL_APP)
        return {**config, "applications": list(apps.values())}, deployment

    def waiting_for_restart(self, settings: Settings) -> list[str]:
        """Variables that the running processes will get only when Serve is restarted."""
        config = serve_config(settings, one_machine=self._one_machine)
        return waiting_for_restart(config, self._rest.details())

    def watch(self, done: Deployment, limit_s: float, say: Callable[[str], None]) -> dict[str, str]:
        """Wait until all applications of the deployment run, and `say` each change of their states.
        Returns those that cannot start, with the reason. Raises ClusterError at the limit, and
        ChangeLost if another list replaced the deployment."""
        end = self._clock() + limit_s
        said: dict[str, str] = {}
        while True:
            settled = self._clock() >= self._writer.settled_at_s
            details = self._details_by(end)
            self._writer.check(details, done.change)
            placed = _placed(ours(details), done.replaced)
            found = [s for s in states(details) if s.name in done.names]
            for state in found:
                if said.get(state.name) != str(state):
                    said[state.name] = str(state)
                    say(str(state))
            failed = {n: why for n, why in placed.items() if why}
            # A driver is about to take back what is placed and fails.
            failed |= {s.name: s.message for s in found if s.failed and s.name not in placed}
            waits = [s.name for s in found if not (s.state == _RUNNING or s.name in failed)]
            waits += [name for name, why in placed.items() if why is None and name not in waits]
            missing = set(done.names) - {s.name for s in found} - failed.keys()
            if not (waits or missing) and settled:
                return failed
            if (waits or missing) and self._clock() > end:
                late = ", ".join(waits) or "some applications"
                raise ClusterError(f"{late} not ready after {limit_s:g} s; they go on starting")
            self._pause(_POLL_S)

    def _details_by(self, end: float) -> dict[str, Any]:
        """Serve's details. Waits, up to `end`, for a dashboard that is away: its head may be
        restarting."""
        while True:
            try:
                return self._rest.details()
            except ClusterError:
                if self._clock() >= end:
                    raise
                self._pause(_POLL_S)

    # ---- all of it -----------------------------------------------------------------------------

    def remove(self, say: Callable[[str], None]) -> None:
        """Remove Headrace's applications: the gateway first, so that requests under way are
        finished, then the models."""
        mine = ours(self._rest.details()).keys()
        if not mine:
            raise ClusterError("no application of Headrace runs there")
        if GATEWAY_APP in mine:
            say("the gateways finish what they have")
            self._delete({GATEWAY_APP, CONTROL_APP})
        say("the models end")
        self._delete(mine)

    def states(self) -> list[ApplicationState]:
        return list(states(self._rest.details()))

    # ---- one model, or the switch --------------------------------------------------------------

    def freeze(self, frozen: bool) -> None:
        """Publish the present tenants again, with the controllers' switch set to `frozen`."""
        self._change("freeze", lambda listed: plan.switched(listed, frozen))

    def rollouts(self, away_s: float = 0.0) -> list[RolloutRecord]:
        """The last rollout of each model, as of its last step; by model. `away_s`: to wait for a
        dashboard that is away. Raises ClusterError then."""
        listed = AppList.of(ours(self._details_by(self._clock() + away_s)))
        found = (entry.record for _, entry in sorted(listed.entries.items()))
        return [record for record in found if record is not None]

    def decide(self, model: str, why: str = "") -> None:
        """Ask for the promotion of a model's rollout; with a reason, for its abort. Raises
        ClusterError if it cannot be decided any more, or not yet."""
        self._change("abort" if why else "promote", lambda it: plan.decided(it, model, why))

    def back(self, model: str) -> tuple[Deployment, int]:
        """Put the version of a model that ran before the present one, at once. Returns what that
        does, for `watch`, and how many earlier versions are still known. Raises ClusterError if
        there is none, or another version of the model is under way."""
        left, number = 0, 0

        def went_back(listed: AppList) -> AppList:
            nonlocal left, number
            follows = plan.went_back(listed, model)
            left, number = len(listed.history(model)) - 1, follows.entries[model].id
            return follows

        change = self._change("rollout back", went_back)
        return Deployment((model_app(model),), [], {}, {}, {model: number}, {}, change), left

    def scale(self, model: str, group: str, replicas: int | None) -> None:
        """Set a number of replicas by hand; None lets the autoscaler decide. Raises ClusterError if
        the file does not allow it."""

        def pinned(listed: AppList) -> AppList:
            terms = published_scaling(listed.control).settings
            if complaint := pin_complaint(terms, model, group, replicas):
                raise ClusterError(complaint)
            return plan.pinned(listed, f"{model}/{group}", replicas)

        self._change("scale", pinned)

    def adapters(self, model: str) -> dict[str, tuple[str, bool]]:
        """The model's adapters: by name the source, and whether it was given by hand. Raises
        ClusterError if the model has none in its settings."""
        listed = AppList.of(ours(self._rest.details()))
        by_hand = listed.control.adapters.get(model, {})
        declared = plan.declared_adapters(listed, model)
        found = adapters_by_hand(declared, by_hand)
        return {name: (source, name in by_hand) for name, source in found.items()}

    def adapt(self, model: str, name: str, source: str | None) -> None:
        """Add an adapter to a model that runs; None takes it out. Raises ClusterError."""
        verb = "adapter remove" if source is None else "adapter add"
        self._change(verb, lambda listed: plan.adapted(listed, model, name, source))

    def keys(self) -> list[KeyRow]:
        """The keys of the tenants there. Those that were revoked at a gateway, or by a folder, do
        not say so. Raises ClusterError if a path names the tenants."""
        control = AppList.of(ours(self._rest.details())).control
        return key_rows(_tenants(control).all_keys(), control.revoked, time.time())

    def revoke(self, name: str) -> RevokedKey:
        """Revoke a key at once, while this cluster lives. `name`: its id or hash. Raises
        ClusterError if there is none."""
        found: list[RevokedKey] = []

        def without_key(listed: AppList) -> AppList:
            try:
                owner, key = _tenants(listed.control).key_called(name)
            except ValueError as unknown:
                raise ClusterError(str(unknown)) from None
            found.append(revoked_key(owner, key))
            return plan.revoked(listed, key.hash)

        self._change("key revoke", without_key)
        return found[-1]

    def _change(self, verb: str, change: Callable[[AppList], AppList]) -> str:
        def changed(details: Mapping[str, Any]) -> dict[str, Any]:
            listed = AppList.of(ours(details))
            if listed.own is None:
                raise ClusterError("Headrace does not run there: apply a file first")
            return beside_others(change(listed).all().values(), details)

        return self._writer.change(verb, changed)

    def _delete(self, names: Set[str]) -> None:
        """Delete these applications of Headrace, and wait until they are gone; again, if one that
        drives rollouts put them back as it ended."""
        end = self._clock() + _GONE_S
        while True:
            details = self._rest.details()
            left = names & details.get("applications", {}).keys()
            if not left:
                return
            if self._clock() > end:
                raise ClusterError(f"{', '.join(sorted(left))} not gone after {_GONE_S:g} s")
            mine = ours(details)
            if left & mine.keys():
                kept = (app for name, app in mine.items() if name not in names)
                self._rest.put(beside_others(kept, details))
            self._pause(_POLL_S)


def _check_gateway(running: Applications, wanted: Applications) -> None:
    """Raises ClusterError if the gateways of a server of one machine would change: its HAProxy and
    its ports are as its start made them."""
    if GATEWAY_APP not in running:
        return
    was, will = _gateway(running[GATEWAY_APP]), _gateway(wanted[GATEWAY_APP])
    if lines := list(changes(was, will, "gateway")):
        refusal = "gateway settings cannot change while it runs; stop and serve again:"
        raise ClusterError("\n  ".join([refusal, *lines]))


def _gateway(app: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the gateway's application."""
    (options,) = app["deployments"]
    written = {**app["args"]["settings"], "replicas": options["num_replicas"]}
    plain = GatewaySettings.model_validate(written).model_dump(mode="json")
    return {**plain, "tenants_path": app["args"]["tenants_path"]}


def _placed(applications: Mapping[str, Any], replaced: Mapping[str, int]) -> dict[str, str | None]:
    """Of each application whose model changes in place: "" once it runs, why it cannot start, or
    None while it starts. A newer change of the model counts as its end."""
    entries = AppList.of(applications).entries
    found: dict[str, str | None] = {}
    for name, number in replaced.items():
        entry = entries.get(name)
        if entry is None or entry.id != number:
            found[model_app(name)] = "another version of it was applied meanwhile"
        else:
            found[model_app(name)] = None if entry.stage == "replacing" else entry.why
    return found


def _tenants(control: Control) -> TenantsSettings:
    if control.tenants is None:
        raise ClusterError("a path names the tenants there (gateway.tenants_path): see that file")
    return parse_tenants(yaml.safe_dump(control.tenants), "the tenants", control.priorities)


def _dead(details: Mapping[str, Any]) -> set[str]:
    """Headrace's applications that failed and do not run. One that runs still may answer requests:
    its version before does."""
    return {s.name for s in states(details) if s.failed and not s.running}


def states(details: Mapping[str, Any]) -> Iterator[ApplicationState]:
    """The states of Headrace's applications."""
    mine = ours(details)
    for name, app in details.get("applications", {}).items():
        if name in mine:
            counted = [d for n, d in app["deployments"].items() if n != ANCHOR_DEPLOYMENT]
            running = sum(r["state"] == _RUNNING for d in counted for r in d["replicas"])
            target = sum(deployment["target_num_replicas"] for deployment in counted)
            yield ApplicationState(name, app["status"], running, target, _message(app))


def _message(app: Mapping[str, Any]) -> str:
    """Serve's messages on the application and on those of its deployments that are not healthy."""
    said = [app.get("message", "")] + [
        deployment.get("message", "")
        for deployment in app["deployments"].values()
        if deployment.get("status") != "HEALTHY"
    ]
    lines = [line for each in said for line in each.strip().splitlines()]
    return "\n".join(lines[-_MESSAGE_LINES:])
