"""Drives the rollouts of a cluster from inside of it: the application `headrace-rollouts`.

It runs while Serve's list has rollouts. Once a second it reads the list, asks the registry, and
puts the list that follows. All that it must remember stands in the list (`listed_rollouts`), so it
may be replaced at any time; a canary then gets its time to start or to leave once more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from deployments.control.listed_live import ListedLive, Served
from deployments.control.rollout_driver import Asked, RolloutDriver, drive
from deployments.process import logs

_LOOKS_S = 1.0


class ClusterRollouts:
    """All rollouts of a cluster; `tick` looks at them once."""

    def __init__(self, served: Served, clock: Callable[[], float] = time.monotonic) -> None:
        self._live = ListedLive(served, clock)
        self._driver = RolloutDriver(self._live, served, clock)

    def tick(self) -> None:
        """Raises ClusterError where the cluster does not answer; what was not done is done by the
        next one."""
        entries = self._live.look()
        for name, canary in self._live.canaries.items():
            asked = entries[name]["asked"]
            if asked is not None:
                self._driver.ask(canary, Asked(asked))
        self._driver.tick()


class RolloutsApplication:
    """The class of the application's one replica."""

    def __init__(self) -> None:
        from deployments.control.serve_controller import ServeController
        from deployments.control.served_models import ServedModels
        from deployments.process.actors import registry

        logs.configure_from_environment()
        self._looks_now = threading.Event()
        rollouts = ClusterRollouts(ServedModels(ServeController(), registry()))
        threading.Thread(
            target=drive, args=(rollouts, self._wait), name="rollouts", daemon=True
        ).start()

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Serve's list has other rollouts."""
        self._looks_now.set()

    def _wait(self) -> bool:
        self._looks_now.wait(_LOOKS_S)
        self._looks_now.clear()
        return False
