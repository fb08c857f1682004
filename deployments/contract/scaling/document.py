"""What a settings file says of scaling, as one document that the autoscaler reads.

Whoever deploys the applications publishes the document into the cluster's key-value store. So no
argument of an application holds a scaling policy, and a change of policy restarts nothing. The
document is JSON and names its version (`codec.WIRE`). A reader ignores fields that it does not
know, and refuses an older version than it speaks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from autoscaling.settings import ScalingSettings
from deployments.contract.codec import SPOKEN, WIRE, OtherVersion
from deployments.contract.scaling.messages import PoolModel


@dataclass(frozen=True, slots=True)
class ScalingDocument:
    """Scaling settings of all models, and of the pool."""

    settings: ScalingSettings = field(default_factory=ScalingSettings)
    pool_models: tuple[PoolModel, ...] = ()  # that a pool replica may hold, with their arguments
    v: int = WIRE

    def text(self) -> str:
        """The document as JSON. Equal documents have equal texts."""
        return msgspec.json.encode(self, order="sorted").decode()


def parse(text: str) -> ScalingDocument:
    """The inverse of `text`. Raises OtherVersion for a text that this code does not read."""
    try:
        found = _decode(text)
    except msgspec.MsgspecError as wrong:
        raise OtherVersion(f"a scaling document that cannot be read: {wrong}") from wrong
    if found.v < min(SPOKEN):
        raise OtherVersion(f"a scaling document of version {found.v}")
    return found


_decode = msgspec.json.Decoder(ScalingDocument).decode
