"""Replaces the registry and the autoscaler when they run another version of Headrace than this.

Serve restarts `headrace-control` when a deployer lists another code, but no named actor: they are
not in Serve's list. So the process that has started last publishes its code, and every few seconds
asks each actor what it runs. An actor that runs something else is killed and created anew under its
name, one at a time. It hands nothing over: the autoscaler takes up what it saved within the last
10 s, and the registry gathers anew what gateways, anchors and replicas say, as after a kill.

A process whose code was published before another's decides nothing, so an older one never brings
its code back. An actor that does not answer is left to those who watch it. The registry stays while
a rollout is judged, since its counts would begin again at the first step, and while Serve does not
list its applications.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import ray

from deployments.control.dashboard import ClusterError
from deployments.control.served_models import ServedModels
from deployments.process import actors, audit
from deployments.process.actors import AUTOSCALER, REGISTRY, Code
from deployments.process.audit import AuditLine

_LOOKS_S = 5.0
_AGAIN_S = 60.0  # a node that still has the version before would give it again and again
_ANSWER_S = 2.0
# Not the variables: whoever creates an actor hands on its own.
_NO_PLACE = ("env_vars", "config")
logger = logging.getLogger("headrace.control")


class RayActors:
    """The actors of this Ray. `models`: `ServedModels`."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def publish(self, code: str) -> None:
        env: Any = ray.get_runtime_context().runtime_env
        place = {name: each for name, each in env.items() if name not in _NO_PLACE}
        actors.publish_newest(Code(code, place))

    def newest(self) -> str:
        """The code that was published last."""
        found = actors.newest()
        return "" if found is None else found.version

    def code(self, name: str) -> str | None:
        """What the actor runs; "" if it is too old to say, None if it does not answer."""
        try:
            asked = actors.made(name).code.remote()
            found: str = ray.get(asked, timeout=_ANSWER_S)
        except AttributeError:
            return ""
        except ray.exceptions.RayError:
            return None
        return found

    def may_go(self, name: str) -> bool:
        """Whether nothing is under way that would be lost with the actor."""
        if name != REGISTRY:
            return True
        try:
            self._models.details()
            phases = {account["phase"] for account in self._models.rollouts()}
        except ClusterError:
            return False
        return phases <= {"promoted", "aborted"}

    def replace(self, name: str) -> None:
        """Kill the actor and create it anew. If this is cut off in between, whoever needs the
        actor next creates it."""
        ray.kill(actors.made(name), no_restart=True)
        actors.made(name)


class Replacement:
    """`look` looks after both actors, at most once in `_LOOKS_S`. `code`: of this process;
    `listed`: of Serve's list, "" if it names none. `clock`: monotonic seconds."""

    def __init__(
        self,
        running: RayActors,
        code: str,
        listed: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._running = running
        self._code = code
        self._clock = clock
        self._looked = float("-inf")
        self._replaced: dict[str, float] = {}
        if listed in ("", code):
            running.publish(code)
        else:
            logger.warning("this node has code %.12s, not %.12s as was deployed", code, listed)

    def look(self) -> None:
        """Replace at most one actor. Raises if the cluster does not answer."""
        now = self._clock()
        if now - self._looked < _LOOKS_S:
            return
        self._looked = now
        if self._running.newest() != self._code:
            return
        for name in (REGISTRY, AUTOSCALER):
            runs = self._running.code(name)
            if runs is None:
                return
            if runs == self._code or now - self._replaced.get(name, float("-inf")) < _AGAIN_S:
                continue
            if self._running.may_go(name):
                self._replaced[name] = now
                why = "it runs another version of Headrace's code than the one deployed last"
                logger.warning("%s is replaced: %s (%.12s, not %.12s)", name, why, runs, self._code)
                line = AuditLine("control", "replace", name, "code", runs, self._code, detail=why)
                with audit.audited(line):
                    self._running.replace(name)
                return
