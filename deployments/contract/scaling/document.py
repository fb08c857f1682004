"""What a settings file says of scaling, as one document that the autoscaler reads.

Published into the cluster's key-value store by whoever puts the applications, so that no argument
of an application holds a policy, and a change of one restarts nothing. JSON; both ends are of one
version, as everything that crosses processes of a cluster here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from autoscaling.settings import ScalingSettings
from deployments.contract.scaling.messages import PoolModel


@dataclass(frozen=True, slots=True)
class ScalingDocument:
    """pool_models: those that a replica of the pool may hold, as they are to be started there."""

    settings: ScalingSettings = field(default_factory=ScalingSettings)
    pool_models: tuple[PoolModel, ...] = ()

    def text(self) -> str:
        """Equal documents have equal texts."""
        return msgspec.json.encode(self, order="sorted").decode()


def parse(text: str) -> ScalingDocument:
    """The inverse of `text`. Raises msgspec.ValidationError for what another version wrote."""
    return msgspec.json.decode(text, type=ScalingDocument)
