"""What a model's application is told, as the user wrote it: what shapes its replicas, no more.

A count, a policy or a reservation is none of it: Serve restarts an application whose arguments
change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.settings.channel import ChannelSettings
from deployments.settings.groups import POOL_GROUP
from deployments.settings.model import ModelSettings

_OVERRIDES = (
    "count", "min", "max", "spare", "survive", "priority", "cost_per_hour", "num_cpus", "num_gpus",
    "memory_mib", "resources", "labels", "surge_percent", "start_timeout_s", "groups",
)  # fmt: skip


def model_arguments(
    name: str, model: ModelSettings, views: Mapping[str, ModelSettings], channel: ChannelSettings
) -> dict[str, Any]:
    """`views`: the settings of each group's replicas, as `ModelSettings.views` has them."""
    args: dict[str, Any] = {
        "name": name,
        "settings": shaping(model),
        "channel": channel.model_dump(mode="json", exclude_unset=True),
    }
    if views:
        args["groups"] = [
            {"name": group.name, "settings": shaping(views[group.name]), "after_s": group.after_s}
            for group in model.replicas.groups
        ]
    return args


def pool_arguments(name: str, model: ModelSettings, channel: ChannelSettings) -> dict[str, Any]:
    """What a replica of the shared pool is told of the model; as its first group, of several."""
    first = next(iter(model.views().values()), model)
    return model_arguments(name, first, {}, channel) | {"group": POOL_GROUP}


def shaping(model: ModelSettings) -> dict[str, Any]:
    """What of its settings shapes a replica, as the user wrote it."""
    written = model.model_dump(mode="json", exclude_unset=True, exclude={"scaling"})
    replicas = {n: v for n, v in written.pop("replicas", {}).items() if n not in _OVERRIDES}
    return written | ({"replicas": replicas} if replicas else {})
