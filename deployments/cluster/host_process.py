"""The process that owns the local Ray cluster: starts it, deploys, answers control, drains, ends.

Runs in a session of its own, so that a terminal's Ctrl-C reaches the command line alone and Ray's
processes can finish what they hold. Says what happens as JSON lines on standard output; ends when
told by SIGTERM or when its standard input closes (the command line is gone). Ray is started fresh
(`address="local"`), never joined, with usage reports off.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deployments.cluster import haproxy, ports, run_folder, state_file
from deployments.cluster.applications import Place, serve_config
from deployments.cluster.changes import changes_between, taken_back, without
from deployments.cluster.ray_env import apply_environment, resolved_ingress
from deployments.cluster.ready_message import ready_message
from deployments.contract import logs
from deployments.contract.logs import LOG_SOCKET, LogSocket
from deployments.settings import ControllerSettings, Settings, SettingsErrors, load, with_address
from deployments.settings.made import cache_dir

_POLL_S = 0.2
logger = logging.getLogger("headrace.host")


class StartFailed(Exception):
    """The start cannot succeed; the message is for the user."""


def say(event: str, **fields: Any) -> None:
    """One JSON line to the command line, if it still listens."""
    try:
        # One write a line: lines come from several threads.
        sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - stays open to the end


class Host:
    """`settings` are those of `path`, with the command line's overrides applied."""

    def __init__(self, settings: Settings, path: Path) -> None:
        self._settings = settings
        self._path = path.absolute()
        self._port = settings.gateway.port
        self._states = state_file.state_folder()
        self._folder = self._states / str(self._port)
        self._began = time.time()
        self._place = Place(str(cache_dir()), str(self._folder / "tenants.yaml"))
        self._stop = threading.Event()
        self._logs: LogSocket | None = None
        self._cluster: Any = None

    # ---- start ------------------------------------------------------------------------------

    def run(self) -> int:
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=self._until_parent_leaves, daemon=True).start()
        for sentence in ports.free_or_say(self._settings.gateway, self._states):
            say("failed", message=sentence)
            return 1
        try:
            self._start()
            if not self._stop.is_set():
                self._serve_until_stopped()
        except StartFailed as failed:
            say("failed", message=str(failed))
            return 1
        except Exception as fault:
            logger.exception("the host failed")
            say("failed", message=f"{type(fault).__name__}: {fault}")
            return 1
        finally:
            self._end()
        return 0

    def _until_parent_leaves(self) -> None:
        sys.stdin.read()
        self._stop.set()

    def _start(self) -> None:
        try:
            self._make_folders()
        except OSError as error:
            at, why = error.filename or self._states, error.strerror or error
            raise StartFailed(f"{at} cannot be written: {why}; XDG_STATE_HOME moves it") from None
        apply_environment(self._settings.gateway, run_folder.made(self._port), self._own())
        say("phase", name="ray", message="starting Ray")
        from deployments.cluster.cluster import Cluster

        self._cluster = Cluster(self._port)
        # Ray's own handler, installed meanwhile, prints a stack trace before it calls ours.
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        self._write_state(self._cluster.address, self._cluster.dashboard_url)
        self._cluster.declare(list(self._settings.models))
        say("phase", name="deploy", message="deploying")
        self._cluster.put(serve_config(self._settings, self._place))
        self._until_ready()

    def _make_folders(self) -> None:
        self._write_state("", "")
        self._folder.mkdir(parents=True, exist_ok=True)
        # Ray puts its driver's folder on every worker's import path: not the user's, then.
        os.chdir(self._folder)
        ports.write_tenants(self._settings, Path(self._place.tenants_file))

    def _own(self) -> dict[str, str]:
        """What this start adds to the cluster's environment."""
        folder = run_folder.made(self._port)
        self._logs = LogSocket(folder / "log.sock", lambda line: say("log", message=line))
        own = {
            "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports.any_free()),
            "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(ports.any_free()),
            LOG_SOCKET: str(self._logs.path),
        }
        gateway = self._settings.gateway
        if resolved_ingress(gateway.ingress) == "haproxy":
            own["RAY_SERVE_HAPROXY_BINARY_PATH"] = haproxy.wrapped(
                folder,
                gateway.host,
                math.ceil(gateway.limits.body_timeout_s),
                gateway.limits.max_requests,
            )
        return own

    def _write_state(self, address: str, dashboard_url: str) -> None:
        state = state_file.ServerState(
            port=self._port,
            server=state_file.ProcessMark.of(os.getpid()),
            ray_address=address,
            dashboard_url=dashboard_url,
            settings_path=str(self._path),
            started_at_s=self._began,
            ports=ports.of(self._settings.gateway),
            host=self._settings.gateway.host,
        )
        state_file.write(state, self._states)

    def _until_ready(self) -> None:
        began = time.monotonic()
        names = list(self._settings.models)
        limit_s = max(m.replicas.start_timeout_s for m in self._settings.models.values())
        while not self._stop.is_set():
            say("progress", models=self._cluster.progress())
            for name, reason in self._cluster.cannot_start(names).items():
                raise StartFailed(f"model {name} cannot start: {reason}")
            if self._cluster.ready(self._settings.gateway.replicas):
                say("progress", models=self._cluster.progress())
                message = ready_message(self._url(), self._cluster.descriptions())
                say("ready", message=message, seconds=time.monotonic() - began)
                return
            if time.monotonic() - began > limit_s:
                raise StartFailed(
                    f"not ready after {limit_s:g} s (replicas.start_timeout_s); "
                    f"Ray's own logs are in {self._cluster.logs}"
                )
            self._stop.wait(_POLL_S)

    def _url(self) -> str:
        host = self._settings.gateway.host
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        return f"http://{shown}:{self._port}"

    # ---- run --------------------------------------------------------------------------------

    def _serve_until_stopped(self) -> None:
        from deployments.cluster.control_socket import ControlSocket

        with ControlSocket(self._port, self._handlers()):
            self._stop.wait()

    def _handlers(self) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
        return {"status": self._status, "apply": self._apply, "freeze": self._freeze}

    def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        status: dict[str, Any] = self._cluster.status(self._settings)
        uptime_s = time.time() - self._began
        return {"url": self._url(), "pid": os.getpid(), "uptime_s": uptime_s, **status}

    def _apply(self, request: dict[str, Any]) -> dict[str, Any]:
        """Loads the file, refuses what cannot change while running, and puts the whole list."""
        path = Path(request["path"])
        try:
            new = load(path)
        except SettingsErrors as wrong:
            return {"error": str(wrong)}
        gateway = self._settings.gateway
        if new.gateway.model_copy(update={"port": gateway.port, "host": gateway.host}) != gateway:
            return {"error": "gateway settings cannot change while it runs; stop and serve again"}
        new = new.model_copy(update={"gateway": gateway})
        changes = changes_between(self._settings, new)
        failed = self._put(new, changes["added"] + changes["changed"])
        if not failed:
            self._settings, self._path = new, path
            return changes
        kept = without(self._settings, new, failed)
        self._put(kept, [])
        self._settings = kept
        return {"error": "\n".join(taken_back(self._settings, failed))}

    def _freeze(self, request: dict[str, Any]) -> dict[str, Any]:
        """Until it is asked for the opposite, or a file is applied: then that one holds."""
        switched = {"controllers": ControllerSettings(frozen=request["frozen"])}
        new = self._settings.model_copy(update=switched)
        ports.write_tenants(new, Path(self._place.tenants_file))
        changes = changes_between(self._settings, new)
        self._settings = new
        return changes

    def _put(self, new: Settings, changed: list[str]) -> dict[str, str]:
        """Makes the list of models that of `new`; why those of `changed` that failed did."""
        ports.write_tenants(new, Path(self._place.tenants_file))
        self._cluster.declare(list(new.models))
        self._cluster.put(serve_config(new, self._place))
        failures: dict[str, str] = self._cluster.settle(
            {name: new.models[name] for name in changed}, self._stop
        )
        return failures

    # ---- end --------------------------------------------------------------------------------

    def _end(self) -> None:
        """Of everything this start began; a start that was refused began nothing."""
        if self._cluster is not None:
            say("phase", name="drain", message="draining")
            self._cluster.drain(self._settings.gateway.drain_s)
            say("phase", name="stop", message="stopping Ray")
            self._cluster.close()
        haproxy.end(haproxy.find(run_folder.path_of(self._port)))
        if self._logs is not None:
            self._logs.close()
        run_folder.remove(self._port)
        state_file.remove(self._port, self._states)
        say("stopped")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--host")
    args = parser.parse_args()
    try:
        settings = with_address(load(args.settings), host=args.host, port=args.port)
    except SettingsErrors as wrong:
        say("failed", message=str(wrong))
        return 2
    logs.configure(settings.gateway.log.level, settings.gateway.log.format)
    return Host(settings, args.settings).run()


if __name__ == "__main__":
    sys.exit(main())
