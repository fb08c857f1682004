"""What a settings file says of scaling, as one document that the autoscaler reads.

Whoever deploys the applications publishes the document into the cluster's key-value store. So no
argument of an application holds a scaling policy, and a change of policy restarts nothing. The
document is JSON. Both ends run the same version of Headrace, as for everything here that crosses
processes of a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from autoscaling.settings import ScalingSettings
from deployments.contract.scaling.messages import PoolModel


@dataclass(frozen=True, slots=True)
class ScalingDocument:
    """Scaling settings of all models, and of the pool."""

    settings: ScalingSettings = field(default_factory=ScalingSettings)
    pool_models: tuple[PoolModel, ...] = ()  # that a pool replica may hold, with their arguments

    def text(self) -> str:
        """The document as JSON. Equal documents have equal texts."""
        return msgspec.json.encode(self, order="sorted").decode()


def parse(text: str) -> ScalingDocument:
    """The inverse of `text`. Raises msgspec.ValidationError for what another version wrote."""
    return msgspec.json.decode(text, type=ScalingDocument)
