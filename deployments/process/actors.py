"""Finds the control plane's named actors, without importing what they are made of.

There is one of each per cluster, detached, and Ray restarts it when it dies. Whoever needs the
registry first creates it; the registry creates the autoscaler, and creates it again. After a change
of Headrace's version `headrace-control` replaces both (`control/replacement.py`). From then on
whoever creates one, also a process that still runs the version before, creates it from the code
that `headrace-control` has published here.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import ray

from deployments.process import cluster_store

NAMESPACE = "headrace"
REGISTRY, AUTOSCALER = "headrace-registry", "headrace-autoscaler"
_CLASSES = {
    REGISTRY: ("deployments.control.registry.registry_actor", "RegistryActor", -1),
    AUTOSCALER: ("deployments.control.scaling.autoscaler_actor", "AutoscalerActor", 0),
}
"""Module, class, and how often Ray repeats a call that a restart of the actor interrupted (-1:
until it succeeds)."""
_NEWEST = "code"  # the key of `Code` in the cluster's store
logger = logging.getLogger("headrace.actors")


@dataclass(frozen=True, slots=True)
class Code:
    """One version of Headrace's code. `place`: the `runtime_env` whose processes find it; empty
    where each node has it installed."""

    version: str
    place: Mapping[str, Any]


def publish_newest(code: Code) -> None:
    """From now on actors are created from this code."""
    text = json.dumps({"version": code.version, "place": dict(code.place)})
    cluster_store.put(_NEWEST, text.encode())


def newest() -> Code | None:
    """The code that was published last; None before the first `headrace-control` has started."""
    found = cluster_store.get(_NEWEST)
    return None if found is None else Code(**json.loads(found))


def registry() -> Any:
    """The registry's handle. Creates the actor if there is none."""
    return NamedActor(REGISTRY)


def running_autoscaler() -> Any:
    """The autoscaler's handle. Raises ValueError while there is none."""
    return ray.get_actor(AUTOSCALER, namespace=NAMESPACE)


def made(name: str) -> Any:
    """Ray's handle of the actor with this name. Creates the actor if there is none. Blocks."""
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        code = newest()
    module, of, repeats = _CLASSES[name]
    return (
        ray.remote(getattr(import_module(module), of))
        .options(
            name=name,
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=repeats,
            max_concurrency=1000,
            runtime_env=dict(code.place) if code and code.place else None,
        )
        .remote()
    )


class NamedActor:
    """A handle that outlives its actor: `NamedActor(name).method.remote(...)` calls whichever actor
    has the name. A call to one that was replaced fails with Ray's ActorDiedError; then the next one
    is looked up on a thread, or created, and later calls reach it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._handle = made(name)
        self._looks = threading.Lock()

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        return SimpleNamespace(remote=partial(self._call, method))

    def _call(self, method: str, *args: Any) -> Any:
        asked = getattr(self._handle, method).remote(*args)
        asked.future().add_done_callback(self._answered)
        return asked

    def _answered(self, answer: Future[Any]) -> None:
        """Runs on a thread of Ray's, which must not be held up."""
        gone = isinstance(answer.exception(), ray.exceptions.ActorDiedError)
        if gone and self._looks.acquire(blocking=False):
            threading.Thread(target=self._look, name=f"find {self._name}", daemon=True).start()

    def _look(self) -> None:
        try:
            self._handle = made(self._name)
        except Exception as fault:  # the next call that fails looks again
            logger.debug("%s is not found: %s", self._name, fault)
        finally:
            self._looks.release()
