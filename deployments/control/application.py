"""The control plane's Serve application, `headrace-control`: one replica.

It publishes what Serve's list says, and drives what it begins. Serve hands it the block of the list
(`contract/listed.py`), the deployment's `user_config`, at its start and at each change, which
restarts nothing. All its state stands there, so it may be replaced at any time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

from ray import serve

from deployments.contract.app_names import CONTROL_DEPLOYMENT
from deployments.contract.listed import Control, parse
from deployments.control import publisher
from deployments.control.driver import Driver
from deployments.control.replacement import RayActors, Replacement
from deployments.control.serve_controller import ServeController
from deployments.control.served_models import ServedModels
from deployments.process import log_choice
from deployments.process.actors import registry
from deployments.process.code_version import code_version
from deployments.process.loop_watch import watch_process
from deployments.process.loopback import keep_replica_calls_local

_LOOKS_S = 1.0
logger = logging.getLogger("headrace.rollouts")


class ControlPlane:
    """The class of the application's one replica. `code`: that the deployer's list names, or ""."""

    async def __init__(self, code: str) -> None:  # type: ignore[misc]
        keep_replica_calls_local()
        log_choice.follow()
        self._loop_watch = watch_process()
        self._looks_now = threading.Event()
        self._to_pin: Control | None = None
        models = ServedModels(ServeController(), registry())
        self._driver = Driver(models)
        self._replacement = Replacement(RayActors(models), code_version(), code)
        threading.Thread(target=self._drive, name="driver", daemon=True).start()

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Publish the block. Raises SettingsErrors for what cannot be meant; Serve then shows it,
        and what was published before stays."""
        control = parse(user_config)
        await asyncio.to_thread(publisher.publish, control)
        self._to_pin = control
        self._looks_now.set()

    def _drive(self) -> None:
        """Does what is due about once a second, and at once after `reconfigure`."""
        silent = False
        while True:
            self._looks_now.wait(_LOOKS_S)
            self._looks_now.clear()
            try:
                self._tick()
                silent = False
            except Exception as fault:
                # The next look asks again; a silence that lasts is said once.
                if not silent:
                    what = type(fault).__name__
                    logger.warning("rollouts wait for the cluster: %s: %s", what, fault)
                silent = True

    def _tick(self) -> None:
        """Raises if the cluster does not answer."""
        try:
            if (control := self._to_pin) is not None:
                publisher.pin(control)
                if self._to_pin is control:
                    self._to_pin = None
            self._driver.tick()
        finally:  # they may fail because an actor is too old
            self._replacement.look()

    async def __del__(self) -> None:
        self._loop_watch.close()


def control(args: dict[str, Any]) -> Any:
    """Serve calls it inside the cluster. `args`: {"code": digest of the sources, if a deployer
    wrote the list}, so that another version of Headrace replaces the process, which then replaces
    the named actors."""
    deployment: Any = serve.deployment(
        ControlPlane,
        name=CONTROL_DEPLOYMENT,
        ray_actor_options={"num_cpus": 0},
        max_surge_percent=100,  # else the old one drains first, for 30 s on a cluster
        graceful_shutdown_timeout_s=1,
        graceful_shutdown_wait_loop_s=0.1,
    )
    return deployment.bind(args.get("code", ""))
