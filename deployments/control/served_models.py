"""The models that Serve runs, as a rollout or a changed file needs to ask of them: Serve's list of
applications, and the registry.

Serve carries out the list that is put. The registry is only told of it, and asked for progress. A
registry that hangs costs a bounded wait and the progress, but blocks no change. Every call blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

import ray

from deployments.contract.app_names import is_model_app, model_app, model_name
from deployments.contract.model_arguments import digests
from deployments.contract.registry import (
    ALL_PROGRESS,
    ANSWER_S,
    STATUS,
    RegistryStatus,
    ReplicaProgress,
)
from deployments.contract.rollout.account import RolloutAccount
from deployments.contract.rollout.terms import TERMS, RolloutTerms
from deployments.control.application_list import Applications, by_name, is_ours
from deployments.control.dashboard import ClusterError, ServeApplications
from deployments.process import description_store

_STARTS_S = 60.0  # to the registry's first answer: its imports take seconds on a busy machine
_BRIEFLY_S = 2.0  # to wait for an answer that the caller can do without
States = Mapping[str, tuple[str, str]]  # state and Serve's message of each application
logger = logging.getLogger("headrace.host")


class ServedModels:
    """`registry`: the handle of its actor."""

    def __init__(self, serve: ServeApplications, registry: Any) -> None:
        self._serve = serve
        self._registry = registry
        self._answered = False  # the registry has answered once
        self._applications: Applications = {}
        self._digests: dict[str, frozenset[str]] = {}

    def details(self) -> dict[str, Any]:
        """`ServeInstanceDetails`."""
        return self._serve.details()

    def put(self, config: dict[str, Any]) -> None:
        """Put the list of applications. Earlier failures of those that change are forgotten, since
        Serve starts them again. Raises ClusterError with Serve's message if it refuses the list."""
        before = self._applications
        self.follow(by_name(config))
        found = [n for n, app in self._applications.items() if before.get(n) != app]
        self.try_registry("forget_failures", [model_name(n) for n in found])
        self._serve.put(config)
        self.try_registry("refresh")  # else the registry hears of it within a second

    def follow(self, applications: Applications) -> None:
        """From now on these run, by name: a failure that a replica with other settings reports is
        ignored."""
        found = {n: app for n, app in applications.items() if is_model_app(n) and is_ours(app)}
        self._applications = found
        self._digests = {model_name(n): digests(app["args"]) for n, app in found.items()}

    def ask_registry(self, method: str, *args: Any, limit_s: float = ANSWER_S) -> Any:
        """The registry's answer. Raises ClusterError if there is none in time."""
        limit_s = limit_s if self._answered else max(limit_s, _STARTS_S)
        try:
            found = ray.get(getattr(self._registry, method).remote(*args), timeout=limit_s)
        except ray.exceptions.GetTimeoutError:
            raise ClusterError(
                f"the registry does not answer within {limit_s:g} s: it hangs, or its machine "
                "does; requests are served meanwhile"
            ) from None
        except ray.exceptions.RayActorError as gone:
            raise ClusterError(f"the registry is away: {gone}") from None
        self._answered = True
        return found

    def try_registry(self, method: str, *args: Any) -> Any:
        """As `ask_registry`, but logs a warning and returns None if there is no answer."""
        try:
            return self.ask_registry(method, *args, limit_s=_BRIEFLY_S)
        except ClusterError as silence:
            logger.warning("%s (%s)", silence, method)
            return None

    def known(self) -> RegistryStatus:
        """All that the registry knows. Raises as `ask_registry`."""
        return STATUS.decode(self.ask_registry("status"))

    def replica_progress(self) -> list[ReplicaProgress]:
        """How far each replica has come with its start; [] if the registry does not answer."""
        said = self.try_registry("progress")
        return [] if said is None else ALL_PROGRESS.decode(said)

    # ---- rollouts; each raises ClusterError if the registry does not answer ------------------

    def rollouts(self) -> list[RolloutAccount]:
        found: list[RolloutAccount] = self.ask_registry("rollouts")
        return found

    def begin_rollout(self, model: str, terms: RolloutTerms) -> int:
        return int(self.ask_registry("begin_rollout", model, TERMS.encode(terms)))

    def promote(self, model: str) -> bool:
        return bool(self.ask_registry("promote", model))

    def finish_rollout(self, model: str) -> bool:
        return bool(self.ask_registry("finish_rollout", model))

    def abort_rollout(self, model: str, why: str) -> bool:
        return bool(self.ask_registry("abort_rollout", model, why))

    def held(self, name: str) -> int:
        """Rows of a model that wait at gateways, plus leases at its replicas."""
        gateways = self.known().gateways.values()
        seen = [g.models[name] for g in gateways if name in g.models]
        return sum(s.waiting_rows + s.leases for s in seen)

    def runs(self, name: str) -> bool:
        return self.applications().get(model_app(name), ("", ""))[0] == "RUNNING"

    def forget(self, name: str) -> None:
        """Delete the stored descriptions of a model that is gone."""
        description_store.forget(name)

    def failures(self, names: Collection[str], apps: States) -> dict[str, str]:
        """Failures since the last `put`, in a replica's own words if it had any, else in Serve's.
        Reports of replicas with other settings are ignored: one of a version that was taken back
        may still report its failure."""
        found = {n: apps.get(model_app(n), ("", "")) for n in names}
        failed = {n: said for n, (state, said) in found.items() if state == "DEPLOY_FAILED"}
        return failed | {
            n.model: n.detail
            for n in self.replica_progress()
            if n.phase == "failed"
            and n.model in names
            and n.digest in self._digests.get(n.model, ())
        }

    def cannot_start(self, names: Collection[str]) -> dict[str, str]:
        """Which of these models cannot start, by name, and why."""
        return self.failures(names, self.applications())

    def applications(self) -> dict[str, tuple[str, str]]:
        """State and Serve's message of each application."""
        return states_of(self._serve.details())


def states_of(details: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """State and message of each application of Serve's details."""
    apps = details["applications"]
    return {name: (app["status"], app["message"]) for name, app in apps.items()}
