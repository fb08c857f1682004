"""A local Ray cluster with Serve on it, as the host drives it: by lists, over Serve's REST.

Importing this module imports Ray, so `ray_env.apply_environment` must have run before. Every call
here blocks and belongs on the host's threads, never in a gateway.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import httpx
import psutil
import ray
from ray import serve
from ray._private.node import Node

from deployments.contract.app_names import model_app
from deployments.contract.description import ModelDescription
from deployments.contract.registry import ANSWER_S, STATUS
from deployments.control import publisher
from deployments.control.application_list import AppList, by_name, ours
from deployments.control.dashboard import (
    SERVE_ANSWER_S,
    ClusterError,
    RayDashboard,
    ServeRest,
    token_of,
)
from deployments.control.remote_cluster import RemoteCluster
from deployments.control.scaling.scaling_terms import scaling_settings
from deployments.control.serve_config import serve_config
from deployments.control.served_models import ServedModels, states_of
from deployments.control.supervisor import ports, ray_processes
from deployments.process.actors import NAMESPACE, registry
from deployments.process.loopback import authority, reached_at
from deployments.settings.gateway import GatewaySettings
from deployments.settings.model import ModelSettings
from deployments.settings.replicas import ReplicaSettings
from deployments.settings.tree import Settings

_OBJECT_STORE_BYTES = 128 * 1024 * 1024
_POLL_S = 0.2
_SILENT_LOOKS = 3  # of 5 s each, in a row: then the dashboard hangs
logger = logging.getLogger("headrace.host")
_READY_ANSWER_S = 0.5  # HAProxy holds requests while no gateway is up; progress must go on
_AGENT_S = 5.0  # until the agent of a Ray that has started must listen
_LOGICAL_CPUS = 1000  # all replicas share this one machine: none may wait for a place


class LocalCluster(ServedModels):
    """Starts Ray; never joins one. Where the gateways take TLS only, this process has no
    certificate for it."""

    def __init__(self, gateway: GatewaySettings) -> None:
        # Ray starts two processes of which nothing here hears: one reads workers' logs for a
        # driver, one adds nodes. Each takes 2 s of a processor at the start.
        for name in ("start_log_monitor", "start_monitor"):
            setattr(Node, name, lambda _: None)
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
        (node,) = ray.nodes()  # type: ignore[no-untyped-call]
        raylet = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
        addresses = {"gcs_server": self.address, "raylet": raylet}
        self.processes = ray_processes.among(psutil.Process().children(), addresses, _AGENT_S)
        self.dashboard_url = f"http://{context.dashboard_url}"
        self.logs = f"{context.address_info['session_dir']}/logs"
        self._reached = reached_at(gateway.host), gateway.port
        self._tls = gateway.tls is not None
        self._dashboard = RayDashboard(self.dashboard_url, token_of(), answer_s=SERVE_ANSWER_S)
        self._rest = ServeRest(self._dashboard)
        self._own = ray_processes.own_dashboard(self.dashboard_url)
        self._deployer = RemoteCluster(self._rest, one_machine=True)
        super().__init__(self._rest, registry())

    def deploy(self, settings: Settings) -> None:
        """Put the first list of applications, and look whether it stands. Raises ClusterError."""
        listed = by_name(serve_config(settings, one_machine=True))
        self.follow(listed)
        # As `headrace-control` would, whose start nobody has to wait for then.
        publisher.publish(AppList.of(listed).control)
        self._deployer.deploy(settings)

    def declared(self) -> Mapping[str, ModelSettings]:
        """Settings of the models that are to run, with what the autoscaler is told of them; by
        name."""
        return scaling_settings(AppList.of(ours(self.details())).control).models

    def cannot_start(self, names: Collection[str]) -> dict[str, str]:
        """Those, too, that were taken off the list meanwhile because they could not."""
        details = self._serve.details()
        entries = AppList.of(ours(details)).entries
        gone = [n for n in names if model_app(n) not in details["applications"] and n in entries]
        taken_back = {n: entries[n].why for n in gone if entries[n].why}
        return taken_back | self.failures(names, states_of(details))

    def keep_dashboard(self) -> None:
        """Start the dashboard again if it has ended or hangs."""
        if self._own and not any(self._rest.answers() for _ in range(_SILENT_LOOKS)):
            self._own.start_again(self._rest.answers)

    def progress(self) -> list[dict[str, Any]]:
        """For each replica that has reported: the phases that it passed, then the present one."""
        return [
            {"model": each.model, "phase": phase, "fraction": fraction, "detail": detail}
            for each in self.replica_progress()
            for phase, fraction, detail in [
                *((passed, 1.0, "") for passed in each.passed),
                (each.phase, each.fraction, each.detail),
            ]
        ]

    def waits(self, models: Mapping[str, ModelSettings]) -> dict[str, str]:
        """Why each of these models has no process yet, by name."""
        total = ray.cluster_resources()  # type: ignore[no-untyped-call]
        free = ray.available_resources()  # type: ignore[no-untyped-call]
        return {name: why_waiting(model, total, free) for name, model in models.items()}

    def ready(self, gateways: int) -> bool:
        """Whether every model that is not optional is hot at every gateway."""
        try:
            if self._tls:
                socket.create_connection(self._reached, _READY_ANSWER_S).close()
            else:
                url = f"http://{authority(*self._reached)}/readyz"
                # Without certificates, which take 30 ms of a processor to load.
                answer = httpx.get(url, timeout=_READY_ANSWER_S, verify=False)
                # Through Serve's proxy, which is no way for large bodies or gRPC.
                if answer.status_code != 200 or "serve-proxy" in answer.headers.get("via", ""):
                    return False
        except (OSError, httpx.HTTPError):
            return False
        if gateways == 1 and not self._tls:
            return True
        if (said := self.try_registry("status")) is None:
            return False
        known = STATUS.decode(said)
        seen = [g.models for g in known.gateways.values()]
        names = known.view.declared - known.view.optional
        return len(seen) >= gateways and all(
            name in models and models[name].replicas > 0 for models in seen for name in names
        )

    def descriptions(self) -> list[ModelDescription]:
        view = self.known().view
        return [view.models[name] for name in sorted(view.models)]

    def status(self) -> dict[str, Any]:
        """The models, gateways, rollouts and scaling of a `StatusSnapshot`."""
        # The registry asks Serve and then the autoscaler, so it gets twice the time.
        found: dict[str, Any] = self.ask_registry("server_status", limit_s=2 * ANSWER_S)
        return found

    def drain(self, limit_s: float) -> None:
        """Make gateways answer new requests with 503. Returns when no request is in flight, or at
        the limit."""
        end = time.monotonic() + limit_s
        try:
            self.ask_registry("drain", True)
            while time.monotonic() < end:
                gateways = self.known().gateways.values()
                if all(g.draining and g.inflight == 0 for g in gateways):
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


# ---- what a model without a process waits for ----------------------------------------------------


_MIB = 1 << 20
STARTS = "its process is starting"


def why_waiting(model: ModelSettings, total: Mapping[str, float], free: Mapping[str, float]) -> str:
    """A sentence's end for a model without a report. `total`, `free`: of this machine."""
    reasons: dict[str, None] = {}
    for view in (model.views() or {"": model}).values():
        for name, setting, wanted in _wanted(view.replicas):
            has, left = total.get(name, 0.0), free.get(name, 0.0)
            if wanted > left:
                unit, what = (_MIB, "MiB of memory") if name == "memory" else (1, name)
                there = f"{left / unit:g} of {has / unit:g} are free"
                if wanted > has:
                    there = f"this machine has {has / unit:g}"
                reasons[f"waits for {wanted / unit:g} {what} ({setting}): {there}"] = None
    return "; ".join(reasons) or STARTS


def _wanted(replicas: ReplicaSettings) -> Iterator[tuple[str, str, float]]:
    """Ray's name, the setting's path and the amount of what a replica reserves beside processors,
    of which this server declares more than enough."""
    if replicas.num_gpus:
        yield "GPU", "replicas.num_gpus", replicas.num_gpus
    if replicas.memory_mib is not None:
        yield "memory", "replicas.memory_mib", replicas.memory_mib * _MIB
    for name, amount in replicas.resources.items():
        yield name, f"replicas.resources.{name}", amount
