"""What a replica of the shared pool serves, as it tells the registry and the registry gateways."""

from __future__ import annotations

from dataclasses import dataclass

from deployments.contract.codec import MessageCodec


@dataclass(frozen=True, slots=True)
class PoolMember:
    """A model that a pool replica serves."""

    model: str
    member: str  # id of this residency: from one loading of the model to its unloading
    replica: str  # the pool replica's id in Serve
    digest: str  # of the settings that the model was loaded with
    version: str  # of the model that was loaded
    channel: str  # address where it listens
    slots: int  # batches that each gateway may have there
    after_s: float  # predicted wait on the model's own replicas beyond which this one is used
    channel_versions: str = "3"  # that it speaks, with commas between them


MEMBERS = MessageCodec[tuple[PoolMember, ...]](tuple[PoolMember, ...])
