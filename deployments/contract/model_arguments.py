"""The arguments of a model's application: the settings that shape its replicas, as the user wrote
them.

Counts, policies and reservations are left out, because Serve restarts an application whose
arguments change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.settings.channel import ChannelSettings
from deployments.settings.groups import POOL_GROUP
from deployments.settings.model import ModelSettings
from deployments.settings.plain import settings_digest

_OVERRIDES = (  # settings of replicas that do not shape them
    "count", "min", "max", "spare", "survive", "priority", "cost_per_hour", "num_cpus", "num_gpus",
    "memory_mib", "resources", "labels", "surge_percent", "start_timeout_s", "groups",
)  # fmt: skip


def model_arguments(
    name: str, model: ModelSettings, views: Mapping[str, ModelSettings], channel: ChannelSettings
) -> dict[str, Any]:
    """`views`: the settings of each group's replicas, from `ModelSettings.views`."""
    args: dict[str, Any] = {
        "name": name,
        "settings": shaping(model),
        "channel": channel.model_dump(mode="json", exclude_unset=True),
    }
    if views:
        args["groups"] = [
            {
                "name": group.name,
                "settings": shaping(views[group.name]),
                "after_s": group.after_s,
                **({} if group.max_length is None else {"max_length": group.max_length}),
            }
            for group in model.replicas.groups
        ]
    return args


def pool_arguments(name: str, model: ModelSettings, channel: ChannelSettings) -> dict[str, Any]:
    """The arguments of the model in a replica of the shared pool; of a model with groups, as its
    first group that takes all lengths. They include `start_timeout_s`, which for a model's own
    replicas Serve keeps."""
    first = model.main_view()
    own = {"group": POOL_GROUP, "start_timeout_s": first.replicas.start_timeout_s}
    return model_arguments(name, first, {}, channel) | own


def shaping(model: ModelSettings) -> dict[str, Any]:
    """The part of the settings that shapes a replica, as the user wrote it."""
    written = model.model_dump(mode="json", exclude_unset=True, exclude={"scaling", "rollout"})
    replicas = {n: v for n, v in written.pop("replicas", {}).items() if n not in _OVERRIDES}
    return written | ({"replicas": replicas} if replicas else {})


def group_arguments(args: dict[str, Any]) -> list[dict[str, Any]]:
    """The arguments of each group's replicas, which hold nothing of other groups. Of a model
    without groups, its own arguments."""
    if "groups" not in args:
        return [args]
    own = {"name": args["name"], "channel": args["channel"]}
    return [
        own | {"settings": group["settings"], "group": group["name"]} for group in args["groups"]
    ]


def digests(args: dict[str, Any]) -> frozenset[str]:
    """The digests of the settings of each group's replicas, as the replicas report them."""
    return frozenset(settings_digest(each["settings"]) for each in group_arguments(args))
