"""What a model's application is told, as the user wrote it: what shapes its replicas, no more.

A count, a policy or a reservation is none of it: Serve restarts an application whose arguments
change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.settings.channel import ChannelSettings
from deployments.settings.groups import POOL_GROUP
from deployments.settings.load import settings_digest
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
    """What a replica of the shared pool is told of the model; as its first group, of several.
    `start_timeout_s`: Serve keeps it of a model's own replicas, here nobody else does."""
    first = next(iter(model.views().values()), model)
    own = {"group": POOL_GROUP, "start_timeout_s": first.replicas.start_timeout_s}
    return model_arguments(name, first, {}, channel) | own


def shaping(model: ModelSettings) -> dict[str, Any]:
    """What of its settings shapes a replica, as the user wrote it."""
    written = model.model_dump(mode="json", exclude_unset=True, exclude={"scaling", "rollout"})
    replicas = {n: v for n, v in written.pop("replicas", {}).items() if n not in _OVERRIDES}
    return written | ({"replicas": replicas} if replicas else {})


def group_arguments(args: dict[str, Any]) -> list[dict[str, Any]]:
    """What the replicas of each group are started with, which says nothing of the other groups; of
    a model without groups, its own arguments."""
    if "groups" not in args:
        return [args]
    own = {"name": args["name"], "channel": args["channel"]}
    return [
        own | {"settings": group["settings"], "group": group["name"]} for group in args["groups"]
    ]


def digests(args: dict[str, Any]) -> frozenset[str]:
    """Of what the replicas of each group are started with, as they say themselves."""
    return frozenset(settings_digest(each["settings"]) for each in group_arguments(args))
