"""The process that owns the local Ray cluster: starts it, deploys, answers control, drains, ends.

It runs in a session of its own, so that Ctrl-C in a terminal reaches the command line only, and
Ray's processes can finish their work. It prints events as JSON lines on standard output. It ends on
SIGTERM, or when its standard input closes because the command line is gone. Ray is always started
here (`address="local"`), never joined, with usage reports off.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import signal
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from deployments.contract.description import ModelDescription
from deployments.control.dashboard import ClusterError, token_of
from deployments.control.ingress import haproxy_wrapper
from deployments.control.key_revocation import KeyRevocation
from deployments.control.origin import Origin
from deployments.control.ray_env import apply_environment
from deployments.control.supervisor import orphaned_processes, ports, server_files
from deployments.control.supervisor.control_socket import ControlSocket, EventLines, Handler
from deployments.control.supervisor.ingress_socket import IngressSocket
from deployments.control.supervisor.server_files import ServerLog
from deployments.gateway.http.protocols import openapi_schemas
from deployments.process import audit, logs
from deployments.process.audit import AUDIT_FILE, AuditLine
from deployments.process.certificate_files import CertificateFiles
from deployments.process.listening_socket import INGRESS_SOCKET
from deployments.process.logs import LOG_SOCKET, LogSocket
from deployments.process.loopback import authority, reached_at
from deployments.settings.gateway import GatewaySettings, one_machines_ingress
from deployments.settings.plain import SettingsErrors, dump, settings_digest, with_address
from deployments.settings.tree import Settings
from deployments.settings_files.load import load
from deployments.settings_files.sources import FOLDER

_POLL_S = 0.2
_LOOKS_S = 1.0  # between two looks at what models wait for
_DASHBOARD_S = 5.0  # between two looks whether the dashboard answers
_CUT_S = 2.0  # for gateways to tell the callers of what the drain has not finished
_LOST_S = 2.0  # for requests in flight, and for each process, after the cluster was lost
logger = logging.getLogger("headrace.host")


class StartFailed(Exception):
    """The start cannot succeed. The message is for the user."""


class ClusterLost(Exception):
    """One of Ray's own processes has ended. The message is for the user."""


class Host:
    """Runs one server. `settings` are those of `path`, with paths as written there and the command
    line's `address` applied. `say` tells the command line an event with its fields, and never
    blocks."""

    def __init__(
        self,
        settings: Settings,
        path: Path,
        say: Callable[..., None],
        address: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._say = say
        self._settings = settings
        self._path = path.absolute()
        self._origin = Origin(self._path.parent, address)
        self._port = settings.gateway.port
        self._id = uuid.uuid4().hex
        self._states = server_files.state_folder()
        self._folder = self._states / str(self._port)
        self._began, self._began_s = time.time(), time.monotonic()
        self._stop = threading.Event()
        self._is_ready = False
        self._waits: dict[str, str] = {}  # why models have no process yet, by name
        self._looks_at_s = 0.0
        self._term_s = orphaned_processes.TERM_S
        self._logs: LogSocket | None = None
        self._ingress: IngressSocket | None = None
        self._cluster: Any = None
        self._refused = ""  # why the list of applications was not put

    # ---- start ------------------------------------------------------------------------------

    def run(self) -> int:
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=self._stop_with_parent, daemon=True).start()
        if refusal := self._clear_the_way():
            self._say("failed", message=refusal)
            return 1
        try:
            self._start()
            self._serve_until_stopped()
        except (StartFailed, ClusterLost) as failed:
            self._say("failed", message=str(failed))
            return 1
        except Exception as fault:
            logger.exception("the host failed")
            self._say("failed", message=f"{type(fault).__name__}: {fault}")
            return 1
        finally:
            self._end()
        return 0

    def _stop_with_parent(self) -> None:
        sys.stdin.read()
        self._stop.set()

    def _clear_the_way(self) -> str | None:
        """End what killed servers left on this port. Returns why this server still cannot start, or
        None."""
        known = server_files.known(self._port, self._states)
        for state in known:
            if state.alive:
                return (
                    f"port {self._port} is served by Headrace already (process {state.server.pid});"
                    f" `headrace stop --port {self._port}` ends it, `headrace apply` changes its "
                    "models"
                )
        try:
            for state in known:
                if sentence := orphaned_processes.clear(state, self._states):
                    self._say("log", message=sentence)
        except TimeoutError as error:
            return str(error)
        gateway, unusable = self._complete(), None
        if (tls := gateway.tls) is not None:
            unusable = CertificateFiles(tls.certificate, tls.key, tls.client_ca or "").problem()
        return (
            haproxy_wrapper.too_few_files()
            or ports.refusal(gateway)
            or (f"gateway.tls: {unusable}" if unusable else None)
        )

    def _complete(self) -> GatewaySettings:
        """Choose the ingress, and free ports for those that callers do not know, where the file
        leaves that open. Returns the gateway's settings."""
        self._choose({"ingress": one_machines_ingress(self._settings.gateway)})
        found = ports.free_instead(self._settings.gateway)
        for name, port in found.items():
            default = getattr(self._settings.gateway, name)
            self._say("log", message=f"port {default} (gateway.{name}) is taken: {port} instead")
        self._choose(found)
        return self._settings.gateway

    def _choose(self, values: Mapping[str, Any]) -> None:
        self._origin = replace(self._origin, chosen={**self._origin.chosen, **values})
        self._settings = self._origin.completed(self._settings)

    def _start(self) -> None:
        try:
            self._make_folders()
        except OSError as error:
            at, why = error.filename or self._states, error.strerror or error
            raise StartFailed(f"{at} cannot be written: {why}; XDG_STATE_HOME moves it") from None
        folder = server_files.make_run_folder(self._port)
        server_files.write(self._state("", ""), folder)
        apply_environment(self._settings.gateway, folder, self._own_variables(folder))
        self._say("phase", name="ray", message="starting Ray")
        from deployments.control.supervisor.local_cluster import LocalCluster
        from deployments.process import tenants_store

        self._cluster = LocalCluster(self._settings.gateway)
        # Ray's own handler, installed meanwhile, prints a stack trace before it calls ours.
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        server_files.write(
            self._state(self._cluster.address, self._cluster.dashboard_url), self._states
        )
        self._say("cluster", processes=[each.event() for each in self._cluster.processes])
        self._keys = KeyRevocation(
            tenants_store, server_files.revoked_keys(self._states), self._settings.gateway
        )
        self._keys.recall()
        self._record("serve", after=settings_digest(dump(self._settings)))
        self._say("phase", name="deploy", message="deploying")
        threading.Thread(target=self._deploy, name="deploy", daemon=True).start()

    def _deploy(self) -> None:
        """Runs in a thread: whether the list stands is looked at while models start."""
        try:
            self._cluster.deploy(self._settings)
        except ClusterError as refused:
            self._refused = str(refused)
        except Exception as fault:
            logger.exception("the deployment failed")
            self._refused = f"{type(fault).__name__}: {fault}"

    def _record(self, verb: str, after: str = "") -> None:
        """Audit what this process does itself."""
        source = f"process {os.getpid()}"
        audit.record(AuditLine(audit.user(), verb, str(self._path), source, after=after))

    def _make_folders(self) -> None:
        server_files.write(self._state("", ""), self._states)
        self._folder.mkdir(parents=True, exist_ok=True)
        # Ray puts its driver's working folder on every worker's import path: not the user's folder.
        os.chdir(self._folder)

    def _own_variables(self, folder: Path) -> dict[str, str]:
        """The variables that this start adds to the cluster's environment."""
        log = ServerLog(server_files.log_file(self._port, self._states))

        def on_line(line: str) -> None:
            log.write(line)
            self._say("log", message=line)

        self._logs = LogSocket(folder / "log.sock", on_line)
        http, grpc = ports.several_free(2)
        gateway, ingress = self._settings.gateway, folder / "ingress.sock"
        if gateway.ingress == "direct":
            self._ingress = IngressSocket(gateway.host, gateway.port, ingress)
        return {
            INGRESS_SOCKET: str(ingress) if self._ingress else "",
            orphaned_processes.VARIABLE: self._id,
            "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(http),
            "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(grpc),
            LOG_SOCKET: str(self._logs.path),
            AUDIT_FILE: str(server_files.audit_file(self._port, self._states)),
            FOLDER: str(self._path.parent),
        }

    def _state(self, address: str, dashboard_url: str) -> server_files.ServerState:
        return server_files.ServerState(
            port=self._port,
            server=server_files.ProcessMark.of(os.getpid()),
            ray_address=address,
            dashboard_url=dashboard_url,
            settings_path=str(self._path),
            started_at_s=self._began,
            server_id=self._id,
            ports=ports.of(self._settings.gateway),
            host=self._settings.gateway.host,
        )

    def _until_ready(self) -> None:
        began = time.monotonic()
        needed = {n: m for n, m in self._settings.models.items() if not m.optional}
        limit_s = max(m.replicas.start_timeout_s for m in needed.values())
        while not self._stop.is_set():
            self._check_cluster()
            self._say_progress()
            if self._refused:
                raise StartFailed(self._refused)
            # In this order: once a model was taken off the list, gateways are ready without it.
            is_ready = self._cluster.ready(self._settings.gateway.replicas)
            for name, reason in self._cluster.cannot_start(list(needed)).items():
                raise StartFailed(f"model {name} cannot start: {reason}")
            if is_ready:
                self._say("progress", models=self._cluster.progress())
                found = self._cluster.descriptions()
                late = self._settings.models.keys() - needed - {each.name for each in found}
                why = self._cluster.cannot_start(late)
                message = ready_message(
                    self._url(), found, {name: why.get(name, "") for name in late}
                )
                self._say("ready", message=message, seconds=time.monotonic() - began)
                return
            if time.monotonic() - began > limit_s:
                waits = (f"{name} {why}" for name, why in self._waits.items() if name in needed)
                raise StartFailed(
                    f"not ready after {limit_s:g} s (replicas.start_timeout_s); "
                    + "".join(f"{each}; " for each in waits)
                    + f"Ray's own logs are in {self._cluster.logs}"
                )
            self._stop.wait(_POLL_S)

    def _say_progress(self) -> None:
        """Tell how far replicas are, and why models have none yet."""
        rows = self._cluster.progress()
        now, told = time.monotonic(), {row["model"] for row in rows}
        silent = {n: m for n, m in self._settings.models.items() if n not in told}
        if now >= self._looks_at_s:
            self._looks_at_s = now + _LOOKS_S
            self._waits = self._cluster.waits(silent) if silent else {}
        rows += [
            {"model": name, "phase": "starting", "fraction": 0.0, "detail": why}
            for name, why in self._waits.items()
            if name in silent
        ]
        self._say("progress", models=rows)

    def _url(self) -> str:
        host = reached_at(self._settings.gateway.host)
        scheme = "http" if self._settings.gateway.tls is None else "https"
        return f"{scheme}://{authority(host, self._port)}"

    # ---- run --------------------------------------------------------------------------------

    def _serve_until_stopped(self) -> None:
        with ControlSocket(self._port, self._handlers()):
            self._until_ready()
            self._is_ready = True
            # On threads: what hangs may hold up neither the watch nor a stop.
            self._repeat(self._keys.keep, _POLL_S)
            self._repeat(self._cluster.keep_dashboard, _DASHBOARD_S)
            while not self._stop.wait(_POLL_S):
                self._check_cluster()

    def _repeat(self, work: Callable[[], None], every_s: float) -> None:
        def run() -> None:
            while not self._stop.wait(every_s):
                work()

        threading.Thread(target=run, name=work.__name__, daemon=True).start()

    def _check_cluster(self) -> None:
        if lost := self._cluster.lost():
            raise ClusterLost(
                f"Ray's {lost}, has ended, and what is left cannot serve on; "
                f"Ray's own logs are in {self._cluster.logs}"
            )

    def _handlers(self) -> dict[str, Handler]:
        return {
            "status": lambda _: self._status(),
            "where": lambda _: self._where(),
            "keys": lambda _: self._keys.listing(),
            "revoke": self._keys.revoke,
        }

    def _where(self) -> dict[str, Any]:
        """How this server changes: see `Where`."""
        if not self._is_ready:
            return {"error": f"the server is still starting: wait for {self._url()}/readyz"}
        return {
            "dashboard": self._cluster.dashboard_url,
            "token": token_of(),
            "origin": self._origin.plain(),
        }

    def _status(self) -> dict[str, Any]:
        status: dict[str, Any] = self._cluster.status()
        declared = [each for each in status["models"] if each["state"] == "declared"]
        models = self._cluster.declared() if declared and self._is_ready else self._settings.models
        for found in declared:
            if model := models.get(found["name"]):
                found["reason"] = self._cluster.waits({found["name"]: model})[found["name"]]
        uptime_s = time.monotonic() - self._began_s  # the wall clock may be set
        return {"url": self._url(), "pid": os.getpid(), "uptime_s": uptime_s, **status}

    # ---- end --------------------------------------------------------------------------------

    def _end(self) -> None:
        """End everything that this start began; a start that was refused began nothing."""
        try:
            self._end_cluster()
        except Exception:
            logger.exception("the cluster did not end in order")
        if self._ingress is not None:
            self._ingress.close()
        self._end_processes()
        if self._logs is not None:
            self._logs.close()
        self._say("stopped")

    def _end_cluster(self) -> None:
        if self._cluster is None:
            return
        self._record("stop")
        self._say("phase", name="drain", message="draining")
        drain_s = self._settings.gateway.drain_s
        if self._cluster.lost():
            self._term_s = _LOST_S
            limit_s = min(drain_s, _LOST_S)
            drain = threading.Thread(target=self._cluster.drain, args=(limit_s,), daemon=True)
            drain.start()  # it may wait for a process that is gone
            drain.join(_LOST_S)
            return
        self._cluster.drain(drain_s + _CUT_S)
        self._say("phase", name="stop", message="stopping Ray")
        self._cluster.close()

    def _end_processes(self) -> None:
        """End what Ray does not end itself: HAProxy, and agents that have not heard of Ray's end.
        If one does not end, the files are kept: a later `headrace stop` needs them."""
        try:
            orphaned_processes.end(self._id, self._term_s)
        except TimeoutError as error:
            self._say("log", message=str(error))
            return
        server_files.remove_run_folder(self._port, self._id)
        server_files.remove(self._port, self._states, self._id)


_EMBEDS = {  # by kind: the path, and what it calls texts
    "embed": ("/v1/embeddings", "input"),
    "tokens": ("/pooling", "input"),
    "sparse": ("/embed_sparse", "inputs"),
}


def try_line(description: ModelDescription, url: str) -> str:
    """One `curl` command that this model answers, to be pasted into a shell."""
    url, name = url.rstrip("/"), description.name
    if description.kind in _EMBEDS and description.tokenizer_digest:
        path, key = _EMBEDS[description.kind]
        return _post(f"{url}{path}", {"model": name, key: "Ragged traffic at an even flow."})
    if (chat := openapi_schemas.chat(description)) is not None:
        return _post(f"{url}/v1/chat/completions", chat | {"stream": False})
    if (texts := openapi_schemas.classify(description)) is not None:
        return _post(f"{url}/v1/models/{name}:classify", texts)
    model = f"{url}/v2/models/{name}"
    body = openapi_schemas.infer(description)
    return f"{_curl()} {shlex.quote(model)}" if body is None else _post(f"{model}/infer", body)


def _post(url: str, body: dict[str, Any]) -> str:
    text = shlex.quote(json.dumps(body))
    return f"{_curl()} {shlex.quote(url)} -H 'content-type: application/json' -d {text}"


def _curl() -> str:
    """The shell that it is pasted into may name a proxy, and lack what `serve` added to
    `no_proxy`."""
    proxied = urllib.request.getproxies().keys() & {"http", "https", "all"}
    return "curl -s --noproxy '*'" if proxied else "curl -s"


def ready_message(
    url: str, descriptions: Iterable[ModelDescription], late: Mapping[str, str]
) -> str:
    """The last lines that `serve` prints before it serves. `late`: optional models that are not
    ready, by name, with the reason why one cannot start ("": it is starting)."""
    found = list(descriptions)
    lines = [f"ready: {url} ({', '.join(each.name for each in found)})"]
    for name, reason in sorted(late.items()):
        why = f"cannot start: {reason}" if reason else "is not ready yet"
        lines.append(f"{name} is optional and {why}")
    if found:
        lines += ["try:", f"  {try_line(found[0], url)}"]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--host")
    args = parser.parse_args()
    given = {"host": args.host, "port": args.port}
    address = {name: value for name, value in given.items() if value is not None}
    events = EventLines(sys.stdout.fileno())
    try:
        settings = with_address(load(args.settings, absolute=False), address)
        logs.configure(settings.gateway.log.level, settings.gateway.log.format)
        return Host(settings, args.settings, events.say, address).run()
    except SettingsErrors as wrong:
        events.say("failed", message=str(wrong))
        return 2
    finally:
        events.close()


if __name__ == "__main__":
    sys.exit(main())
