"""What replicas have said of their models, in the cluster's own key-value store.

So that an anchor that starts while its model sleeps can announce it without a replica. One entry a
model and group, by the digest of all settings that shape the model's replicas: other settings make
another model, of which nothing is known. In MessagePack; what another version wrote counts as
unknown. Each call blocks for a round trip, see `cluster_store`. Held in place by
tests/integration/test_zero.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec

from deployments.contract import cluster_store
from deployments.contract.description import ModelDescription

logger = logging.getLogger("headrace.anchor")


@dataclass(frozen=True, slots=True)
class StoredDescription:
    """`settings`: the digest of all of the model's. `version`: of all its groups, "" where it has
    none."""

    settings: str
    description: ModelDescription
    tokenizer: bytes
    version: str = ""


# Made once, here: two threads that look at a type for the first time at once crash msgspec 0.22.
_decode = msgspec.msgpack.Decoder(StoredDescription).decode


def put(model: str, group: str, stored: StoredDescription) -> None:
    """Raises what Ray raises where the store does not answer."""
    cluster_store.put(_key(model, group), encode(stored))


def get(model: str, group: str, settings: str) -> StoredDescription | None:
    """None where nothing was stored of these settings. Raises as `put`."""
    found = cluster_store.get(_key(model, group))
    return None if found is None else decode(found, settings)


def forget(model: str) -> None:
    """Of all its groups. Raises as `put`."""
    cluster_store.delete(_key(model, ""))


def encode(stored: StoredDescription) -> bytes:
    return msgspec.msgpack.encode(stored)


def decode(data: bytes, settings: str) -> StoredDescription | None:
    try:
        stored = _decode(data)
    except msgspec.MsgspecError as wrong:
        logger.warning("what was stored of a model is of another version: %s", wrong)
        return None
    return stored if stored.settings == settings else None


def _key(model: str, group: str) -> str:
    return f"description/{model}/{group}"
