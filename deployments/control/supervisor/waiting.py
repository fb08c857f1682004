"""Why has a model on this machine no process yet?

Ray starts a replica once the resources that it reserves are free, and says nothing meanwhile. On
one machine nothing is added later: what a replica wants beyond the machine's total never comes.
Pure; amounts are Ray's own (GPUs, bytes of memory, custom resources), by its names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from deployments.settings.model import ModelSettings
from deployments.settings.replicas import ReplicaSettings

_MIB = 1 << 20
STARTS = "its process is starting"
Resources = Mapping[str, float]


def why_waiting(model: ModelSettings, total: Resources, free: Resources) -> str:
    """A sentence's end for a model without a report. `total`, `free`: of this machine."""
    reasons = [
        _short(name, setting, amount, total.get(name, 0.0), free.get(name, 0.0))
        for view in (model.views() or {"": model}).values()
        for name, setting, amount in _wanted(view.replicas)
        if amount > free.get(name, 0.0)
    ]
    return "; ".join(dict.fromkeys(reasons)) or STARTS


def _wanted(replicas: ReplicaSettings) -> Iterator[tuple[str, str, float]]:
    """Ray's name, the setting's path and the amount of what a replica reserves beside processors,
    of which this server declares more than enough."""
    if replicas.num_gpus:
        yield "GPU", "replicas.num_gpus", replicas.num_gpus
    if replicas.memory_mib is not None:
        yield "memory", "replicas.memory_mib", replicas.memory_mib * _MIB
    for name, amount in replicas.resources.items():
        yield name, f"replicas.resources.{name}", amount


def _short(name: str, setting: str, wanted: float, total: float, free: float) -> str:
    unit, what = (_MIB, "MiB of memory") if name == "memory" else (1, name)
    has = f"this machine has {total / unit:g}"
    there = has if wanted > total else f"{free / unit:g} of {total / unit:g} are free"
    return f"waits for {wanted / unit:g} {what} ({setting}): {there}"
