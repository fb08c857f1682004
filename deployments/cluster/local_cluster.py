"""A local Ray cluster with Serve on it, as the host drives it: by lists, over Serve's REST.

Serve carries out the list of applications that is put. The registry is only told of it, and asked
for progress. A registry that hangs costs a bounded wait and the progress, but blocks no change.

Importing this module imports Ray, so `ray_env.apply_environment` must have run before. Every call
here blocks and belongs on the host's threads, never in a gateway.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

import httpx
import psutil
import ray
from ray import serve

from deployments.cluster import ports, ray_processes, serve_rest
from deployments.cluster.dashboard import ClusterError, Dashboard, token_of
from deployments.cluster.differences import by_name
from deployments.cluster.manual_target import ManualTarget, set_target
from deployments.cluster.model_arguments import digests
from deployments.cluster.serve_rest import ServeRest
from deployments.contract import description_store, tenants_store
from deployments.contract.app_names import is_model_app, model_app, model_name
from deployments.contract.description import ModelDescription
from deployments.contract.registry import ANSWER_S, ReplicaProgress
from deployments.contract.registry_actor import NAMESPACE, registry
from deployments.contract.rollout.account import RolloutAccount
from deployments.contract.rollout.terms import RolloutTerms
from deployments.contract.scaling import store
from deployments.settings.tree import Settings

_OBJECT_STORE_BYTES = 128 * 1024 * 1024
_POLL_S = 0.2
_STARTS_S = 60.0  # to the registry's first answer: its imports take seconds on a busy machine
_BRIEFLY_S = 2.0  # to wait for an answer that the caller can do without
logger = logging.getLogger("headrace.host")
_READY_ANSWER_S = 0.5  # HAProxy holds requests while no gateway is up; progress must go on
_LOGICAL_CPUS = 1000  # all replicas share this one machine: none may wait for a place


class LocalCluster:
    """Starts Ray; never joins one. `port`: where the gateways will be reached; `tls`: they take TLS
    only, for which this process has no certificate."""

    def __init__(self, port: int, *, tls: bool = False) -> None:
        context: Any = ray.init(
            address="local",
            namespace=NAMESPACE,
            num_cpus=_LOGICAL_CPUS,
            include_dashboard=True,
            dashboard_host="127.0.0.1",
            dashboard_port=ports.any_free(),
            object_store_memory=_OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
        self.address = str(context.address_info["gcs_address"])
        addresses = {"gcs_server": self.address, "raylet": _raylet_address()}
        self.processes = ray_processes.among(psutil.Process().children(), addresses)
        self.dashboard_url = f"http://{context.dashboard_url}"
        self.logs = f"{context.address_info['session_dir']}/logs"
        self._port, self._tls = port, tls
        self._dashboard = Dashboard(self.dashboard_url, token_of(), answer_s=serve_rest.ANSWER_S)
        self._serve = ServeRest(self._dashboard)
        self._registry = registry()
        self._heard = False  # the registry has answered once

    def publish_tenants(self, text: str) -> None:
        tenants_store.publish(text)

    def freeze(self, frozen: bool) -> None:
        tenants_store.freeze(frozen)

    def frozen(self) -> bool | None:
        """The controllers' switch as an operator has set it; None: it is as the published tenants
        say."""
        return tenants_store.frozen()

    def published_tenants(self) -> str | None:
        """The text of the tenants in force; None if none was published."""
        return tenants_store.fetch()

    def revoke(self, key_hash: str) -> None:
        tenants_store.revoke(key_hash)

    def revoked(self) -> frozenset[str]:
        return tenants_store.revoked()

    def publish_scaling(self, text: str) -> None:
        store.put(store.DOCUMENT, text)

    def put(self, config: dict[str, Any]) -> None:
        """Put the list of applications. Earlier failures are forgotten, since everything is tried
        again. Raises ClusterError with Serve's message if it refuses the list."""
        models = {model_name(n): app for n, app in by_name(config).items() if is_model_app(n)}
        self._digests = {name: digests(app["args"]) for name, app in models.items()}
        self._try_registry("forget_failures", list(models))
        self._serve.put(config)
        self._try_registry("refresh")  # else the registry hears of it within a second

    def _ask_registry(self, method: str, *args: Any, limit_s: float = ANSWER_S) -> Any:
        """The registry's answer. Raises ClusterError if there is none in time."""
        limit_s = limit_s if self._heard else max(limit_s, _STARTS_S)
        try:
            found = ray.get(getattr(self._registry, method).remote(*args), timeout=limit_s)
        except ray.exceptions.GetTimeoutError:
            raise ClusterError(
                f"the registry does not answer within {limit_s:g} s: it hangs, or its machine "
                "does; requests are served meanwhile"
            ) from None
        except ray.exceptions.RayActorError as gone:
            raise ClusterError(f"the registry is away: {gone}") from None
        self._heard = True
        return found

    def _try_registry(self, method: str, *args: Any) -> Any:
        """As `_ask_registry`, but logs a warning and returns None if there is no answer."""
        try:
            return self._ask_registry(method, *args, limit_s=_BRIEFLY_S)
        except ClusterError as silence:
            logger.warning("%s (%s)", silence, method)
            return None

    def progress(self) -> list[dict[str, Any]]:
        """For each replica that has reported: the phases that it passed, then the present one."""
        progress = self._try_registry("progress") or []
        return [row for each in progress for row in _progress_rows(each)]

    def ready(self, gateways: int) -> bool:
        """Whether every model that is not optional is hot at every gateway."""
        if not (self._listens() if self._tls else self._answers()):
            return False
        return (gateways == 1 and not self._tls) or self._all_see_all(gateways)

    def _answers(self) -> bool:
        try:
            url = f"http://127.0.0.1:{self._port}/readyz"
            return httpx.get(url, timeout=_READY_ANSWER_S).status_code == 200
        except httpx.HTTPError:
            return False

    def _listens(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), _READY_ANSWER_S):
                return True
        except OSError:
            return False

    def _all_see_all(self, gateways: int) -> bool:
        raw = self._try_registry("status")
        if raw is None:
            return False
        seen = [g["models"] for g in raw["gateways"].values()]
        names = raw["view"].declared - raw["view"].optional
        return len(seen) >= gateways and all(
            name in models and models[name]["replicas"] > 0 for models in seen for name in names
        )

    def descriptions(self) -> list[ModelDescription]:
        view = self._ask_registry("status")["view"]
        return [view.models[name] for name in sorted(view.models)]

    def status(self) -> dict[str, Any]:
        """The models, gateways, rollouts and scaling of a `StatusSnapshot`."""
        # The registry asks Serve and then the autoscaler, so it gets twice the time.
        # It asks Serve and the autoscaler in turn.
        found: dict[str, Any] = self._ask_registry("server_status", limit_s=2 * ANSWER_S)
        return found

    def scale(self, target: ManualTarget) -> dict[str, Any]:
        return set_target(target)

    # ---- rollouts; each raises ClusterError if the registry does not answer ------------------

    def rollouts(self) -> list[RolloutAccount]:
        found: list[RolloutAccount] = self._ask_registry("rollouts")
        return found

    def begin_rollout(self, model: str, terms: RolloutTerms) -> int:
        return int(self._ask_registry("begin_rollout", model, terms))

    def promote(self, model: str) -> bool:
        return bool(self._ask_registry("promote", model))

    def finish_rollout(self, model: str) -> bool:
        return bool(self._ask_registry("finish_rollout", model))

    def abort_rollout(self, model: str, why: str) -> bool:
        return bool(self._ask_registry("abort_rollout", model, why))

    def held(self, name: str) -> int:
        """Rows of a model that wait at gateways, plus leases at its replicas."""
        gateways = self._ask_registry("status")["gateways"].values()
        seen = [g["models"][name] for g in gateways if name in g["models"]]
        return sum(s["waiting_rows"] + s["leases"] for s in seen)

    def runs(self, name: str) -> bool:
        return _runs(self.applications(), name)

    def forget(self, name: str) -> None:
        """Delete the stored descriptions of a model that is gone."""
        description_store.forget(name)

    def settle(
        self, settings: Settings, changed: Collection[str], stop: threading.Event
    ) -> dict[str, str]:
        """Wait until the models in `changed` run and models that `settings` lack are gone. Returns
        why models cannot start, by model. Raises InterruptedError when the server stops."""
        limits_s = (settings.models[name].replicas.start_timeout_s for name in changed)
        limit_s = max(limits_s, default=60.0)
        kept = {model_app(name) for name in settings.models}
        end = time.monotonic() + limit_s
        failed: dict[str, str] = {}
        while not stop.is_set():
            apps = self.applications()
            failed |= self._failures(changed, apps)
            waits = {n for n in changed if n not in failed and not _runs(apps, n)}
            waits |= {a for a in apps if is_model_app(a) and a not in kept}
            if not waits:
                return failed
            if time.monotonic() > end:
                return failed | dict.fromkeys(waits, f"not ready after {limit_s:g} s")
            stop.wait(_POLL_S)
        raise InterruptedError("the server is stopping")

    def _failures(
        self, names: Collection[str], apps: Mapping[str, tuple[str, str]]
    ) -> dict[str, str]:
        """Failures since the last `put`, in a replica's own words if it had any, else in Serve's.
        Reports of replicas with other settings are ignored: one of a version that was taken back
        may still report its failure."""
        failed = {n: apps[model_app(n)][1] for n in names if _gave_up(apps, n)}
        progress = self._try_registry("progress") or []
        return failed | {
            n.model: n.detail
            for n in progress
            if n.phase == "failed" and n.model in names and n.digest in self._digests[n.model]
        }

    def cannot_start(self, names: Collection[str]) -> dict[str, str]:
        """Which of these models cannot start, by name, and why."""
        return self._failures(names, self.applications())

    def applications(self) -> dict[str, tuple[str, str]]:
        """State and Serve's message of each application."""
        apps = self._serve.details()["applications"]
        return {name: (app["status"], app["message"]) for name, app in apps.items()}

    def drain(self, limit_s: float) -> None:
        """Make gateways answer new requests with 503. Returns when no request is in flight, or at
        the limit."""
        end = time.monotonic() + limit_s
        try:
            self._ask_registry("drain", True)
            while time.monotonic() < end:
                gateways = self._ask_registry("status")["gateways"].values()
                if all(g.get("draining") and g.get("inflight", 0) == 0 for g in gateways):
                    return
                time.sleep(_POLL_S / 2)
        except (ray.exceptions.RayError, ClusterError) as silence:
            logger.warning("the gateways were not told to drain, or say nothing of it: %s", silence)

    def lost(self) -> str | None:
        """Which of Ray's own processes has ended; None if none has."""
        lost = ray_processes.ended(self.processes)
        return None if lost is None else str(lost)

    def close(self) -> None:
        self._dashboard.close()
        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()


def _raylet_address() -> str:
    """Of this node, the cluster's only one."""
    (node,) = ray.nodes()  # type: ignore[no-untyped-call]
    return f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"


def _progress_rows(each: ReplicaProgress) -> list[dict[str, Any]]:
    past = [(phase, 1.0, "") for phase in each.passed]
    return [
        {"model": each.model, "phase": phase, "fraction": fraction, "detail": detail}
        for phase, fraction, detail in [*past, (each.phase, each.fraction, each.detail)]
    ]


def _runs(apps: Mapping[str, tuple[str, str]], name: str) -> bool:
    return apps.get(model_app(name), ("", ""))[0] == "RUNNING"


def _gave_up(apps: Mapping[str, tuple[str, str]], name: str) -> bool:
    return apps.get(model_app(name), ("", ""))[0] == "DEPLOY_FAILED"
