"""Finds the control plane's named actors, without importing what they are made of.

There is one of each per cluster, detached, and Ray restarts it when it dies. Whoever needs the
registry first creates it; the registry creates the autoscaler, and creates it again.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import ray

NAMESPACE = "headrace"
REGISTRY, AUTOSCALER = "headrace-registry", "headrace-autoscaler"
_CLASSES = {
    REGISTRY: ("deployments.control.registry.registry_actor", "RegistryActor", -1),
    AUTOSCALER: ("deployments.control.scaling.autoscaler_actor", "AutoscalerActor", 0),
}
"""Module, class, and how often Ray repeats a call that a restart of the actor interrupted (-1:
until it succeeds)."""


def registry() -> Any:
    """The registry's handle. Creates the actor if there is none."""
    return _made(REGISTRY)


def autoscaler() -> Any:
    """The autoscaler's handle. Creates the actor if there is none."""
    return _made(AUTOSCALER)


def running_autoscaler() -> Any:
    """The autoscaler's handle. Raises ValueError while there is none."""
    return ray.get_actor(AUTOSCALER, namespace=NAMESPACE)


def _made(name: str) -> Any:
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
        )
        .remote()
    )
