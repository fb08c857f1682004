"""A remote cluster that runs Headrace's applications, driven over Serve's REST only.

Neither Ray nor a Headrace process on the head node is needed: what runs is what Serve lists, and
every change is another list. Putting the same list does not retry an application whose last
deployment failed, so such an application is deleted first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from deployments.contract.app_names import (
    ANCHOR_DEPLOYMENT,
    GATEWAY_APP,
    ROLLOUTS_APP,
    TENANTS_APP,
    model_app,
)
from deployments.contract.rollout.account import RolloutRecord
from deployments.contract.rollout.terms import canary_of
from deployments.control.dashboard import ClusterError
from deployments.control.differences import Difference, by_name, differences
from deployments.control.listed_rollout_plan import planned
from deployments.control.listed_rollouts import (
    entries_of,
    revised,
    revision_of,
    undecided,
    with_entry,
)
from deployments.control.merging import beside_others, heard_later, merged, ours
from deployments.control.serve_config import serve_config
from deployments.control.serve_rest import ServeRest
from deployments.settings.tree import Settings

_FAILED = "DEPLOY_FAILED"
_RUNNING = "RUNNING"
_POLL_S = 1.0
_SETTLES_S = 1.0  # within this a driver puts what it makes of a list that it has read
_TRIES = 5
_GONE_S = 3600.0  # draining there has shorter bounds of its own
_MESSAGE_LINES = 6
_TURN = "turn"  # argument of the tenants' application: how often the switch was set


@dataclass(frozen=True, slots=True)
class ApplicationState:
    """One application, as Serve reports it."""

    name: str
    state: str  # as Serve names it
    running: int  # replicas, anchors not counted
    target: int  # replicas that are to run, anchors not counted
    message: str = ""  # Serve's, on the application or on deployments that are not healthy

    def __str__(self) -> str:
        state = f"{self.name}: {self.state.lower()}, {self.running}/{self.target} replicas"
        return f"{state}\n  {self.message}" if self.message and self.state != _FAILED else state


@dataclass(frozen=True, slots=True)
class Deployment:
    """What deploying a file does."""

    names: tuple[str, ...]  # applications that are to run from now on, canaries not counted
    differences: list[Difference]
    begun: Mapping[str, int]  # models whose rollout begins, with its number
    kept: Mapping[str, int]  # models whose rollout goes on, with its number
    ended: Mapping[str, str]  # models whose rollout is given up, and why


class RemoteCluster:
    """Tests may replace `pause`, which waits between two looks, and `clock`."""

    def __init__(
        self,
        rest: ServeRest,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rest = rest
        self._pause = pause
        self._clock = clock

    def diff(self, settings: Settings) -> Deployment:
        """What `deploy` would do. Raises ClusterError as `deploy` does."""
        details = self._rest.details()
        whole, found = _planned(settings, details)
        merged(whole, details)
        return found

    def deploy(self, settings: Settings) -> Deployment:
        """Put Headrace's applications beside all others. Models that have a `rollout` change by a
        canary. Returns what that does to Headrace's."""
        details = self._rest.details()
        config, deployment = _planned(settings, details)
        merged(config, details)
        if failed := _left_failed(details, deployment):
            # Serve itself rebuilds what has changed, and does not try the rest again.
            self._delete(failed)

        def planned_anew(details: Mapping[str, Any]) -> dict[str, Any]:
            nonlocal deployment
            config, then = _planned(settings, details)
            # What had failed is away by now: no difference to whoever deploys.
            deployment = replace(then, differences=deployment.differences)
            return merged(config, details)

        self._change(planned_anew)
        return deployment

    def heard_later(self, config: Mapping[str, Any]) -> list[str]:
        """Variables that the running processes will get only when Serve is restarted."""
        return heard_later(config, self._rest.details())

    def watch(
        self, names: Collection[str], limit_s: float, say: Callable[[str], None]
    ) -> list[ApplicationState]:
        """Wait until all these applications run, and `say` each change of their states. Returns
        those that failed. Raises ClusterError at the limit."""
        end = self._clock() + limit_s
        said: dict[str, str] = {}
        while True:
            found = [s for s in states(self._details_by(end)) if s.name in names]
            for state in found:
                if said.get(state.name) != str(state):
                    said[state.name] = str(state)
                    say(str(state))
            waits = [s for s in found if s.state not in (_RUNNING, _FAILED)]
            if not waits and len(found) == len(names):
                return [s for s in found if s.state == _FAILED]
            if self._clock() > end:
                late = ", ".join(s.name for s in waits) or "some applications"
                raise ClusterError(f"{late} not ready after {limit_s:g} s; they go on starting")
            self._pause(_POLL_S)

    def _details_by(self, end: float) -> dict[str, Any]:
        """Serve's details. Waits, up to `end`, for a dashboard that is away: its head may be
        restarting."""
        while True:
            try:
                return self._rest.details()
            except ClusterError:
                if self._clock() > end:
                    raise
                self._pause(_POLL_S)

    def remove(self, say: Callable[[str], None]) -> None:
        """Remove Headrace's applications: the gateway first, so that requests under way are
        finished, then the models."""
        mine = ours(self._rest.details()).keys()
        if not mine:
            raise ClusterError("no application of Headrace runs there")
        if GATEWAY_APP in mine:
            say("the gateways finish what they have")
            self._delete({GATEWAY_APP, ROLLOUTS_APP})
        say("the models end")
        self._delete(mine)

    def states(self) -> list[ApplicationState]:
        return list(states(self._rest.details()))

    def freeze(self, frozen: bool) -> None:
        """Publish the present tenants again, with the controllers' switch set to `frozen`."""

        def switched(details: Mapping[str, Any]) -> dict[str, Any]:
            mine = ours(details)
            if "tenants" not in mine.get(TENANTS_APP, {}).get("args", {}):
                raise ClusterError(
                    "nothing publishes tenants there; where gateway.tenants_path names a file, set "
                    "controllers.frozen in it"
                )
            listed = revised({**mine, TENANTS_APP: _frozen(mine[TENANTS_APP], frozen)})
            return beside_others(listed.values(), details)

        self._change(switched)

    def rollouts(self, away_s: float = 0.0) -> list[RolloutRecord]:
        """Those under way, as of their last step, and the last one of each model that ended while
        the cluster remembers rollouts; by model. `away_s`: to wait for a dashboard that is away.
        Raises ClusterError then."""
        entries = entries_of(ours(self._details_by(self._clock() + away_s)))
        return [entries[name]["record"] for name in sorted(entries)]

    def decide(self, model: str, why: str = "") -> None:
        """Ask for the promotion of a model's rollout; with a reason, for its abort. Raises
        ClusterError if it cannot be decided any more, or not yet."""

        def asked(details: Mapping[str, Any]) -> dict[str, Any]:
            mine = ours(details)
            entry = entries_of(mine).get(model)
            if wrong := undecided(model, entry, aborts=bool(why)):
                raise ClusterError(wrong)
            assert entry is not None
            listed = revised(with_entry(mine, model, {**entry, "asked": why}))
            return beside_others(listed.values(), details)

        self._change(asked)

    def _change(self, change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
        """Put the list that `change` makes of Serve's details; again, if whoever drives rollouts
        there undid it by a list that follows from the one before."""
        for _ in range(_TRIES):
            config = change(self._rest.details())
            self._rest.put(config)
            revision = revision_of(by_name(config))
            if revision is None:
                return  # nobody drives any
            self._pause(_SETTLES_S)
            found = revision_of(ours(self._rest.details()))
            if found is None or found >= revision:
                return
        raise ClusterError(f"others undid the change {_TRIES} times; try again")

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


def _planned(settings: Settings, details: Mapping[str, Any]) -> tuple[dict[str, Any], Deployment]:
    """The config to put, without other people's applications, and what it does."""
    running = ours(details)
    config = _in_turn(serve_config(settings), details)
    plan = planned(running, by_name(config), settings, _dead(details))
    found = differences(running, plan.applications)
    found = [each for each in found if each.application != ROLLOUTS_APP]
    canaries = {model_app(canary_of(name)) for name in settings.models}
    names = tuple(name for name in plan.applications if name not in canaries)
    deployment = Deployment(names, found, plan.begun, plan.kept, plan.ended)
    return {**config, "applications": list(plan.applications.values())}, deployment


def _dead(details: Mapping[str, Any]) -> set[str]:
    """Headrace's applications that failed and do not run. One that runs still may answer requests:
    its version before does."""
    return {s.name for s in states(details) if s.state == _FAILED and not s.running}


def _left_failed(details: Mapping[str, Any], deployment: Deployment) -> set[str]:
    """What failed, and would be left so."""
    return _dead(details) - {each.application for each in deployment.differences}


def _frozen(application: Mapping[str, Any], frozen: bool) -> dict[str, Any]:
    args = application["args"]
    tenants = {**args["tenants"], "controllers": {"frozen": frozen}}
    # An operator may have published another switch meanwhile. Without another turn the arguments
    # would be the same as before, and Serve would publish nothing.
    turn = args.get(_TURN, 0) + 1
    return {**application, "args": {**args, "tenants": tenants, _TURN: turn}}


def _in_turn(config: Mapping[str, Any], details: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with the turn that the tenants have reached there, so that it is no difference."""
    running = ours(details).get(TENANTS_APP, {}).get("args", {})
    if _TURN not in running:
        return config
    apps = [
        {**app, "args": {**app["args"], _TURN: running[_TURN]}}
        if app["name"] == TENANTS_APP
        else app
        for app in config["applications"]
    ]
    return {**config, "applications": apps}


def states(details: Mapping[str, Any]) -> Iterator[ApplicationState]:
    """The states of Headrace's applications."""
    mine = ours(details)
    for name, app in details.get("applications", {}).items():
        if name in mine:
            counted = [d for n, d in app["deployments"].items() if n != ANCHOR_DEPLOYMENT]
            running = sum(_running(deployment) for deployment in counted)
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


def _running(deployment: Mapping[str, Any]) -> int:
    return sum(replica["state"] == _RUNNING for replica in deployment["replicas"])
