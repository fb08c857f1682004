"""What replicas have said of their models, in the cluster's own key-value store.

So that an anchor that starts while its model sleeps can announce it without a replica. One entry a
model and group, by the digest of all settings that shape the model's replicas: other settings make
another model, of which nothing is known. In MessagePack; what another version wrote counts as
unknown. As of `tenants_store`: it outlives every process of ours, each call blocks for a round
trip, call from a thread. Held in place by tests/integration/test_zero.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec
from ray.experimental import internal_kv

from deployments.contract.description import ModelDescription

_NAMESPACE = b"headrace"
logger = logging.getLogger("headrace.anchor")


@dataclass(frozen=True, slots=True)
class StoredDescription:
    """`settings`: the digest of all of the model's. `version`: of all its groups, "" where it has
    none."""

    settings: str
    description: ModelDescription
    tokenizer: bytes
    version: str = ""


def put(model: str, group: str, stored: StoredDescription) -> None:
    """Raises what Ray raises where the store does not answer."""
    internal_kv._internal_kv_put(
        _key(model, group), encode(stored), overwrite=True, namespace=_NAMESPACE
    )


def get(model: str, group: str, settings: str) -> StoredDescription | None:
    """None where nothing was stored of these settings. Raises as `put`."""
    found = internal_kv._internal_kv_get(_key(model, group), namespace=_NAMESPACE)
    return None if found is None else decode(bytes(found), settings)


def encode(stored: StoredDescription) -> bytes:
    return msgspec.msgpack.encode(stored)


def decode(data: bytes, settings: str) -> StoredDescription | None:
    try:
        stored = msgspec.msgpack.decode(data, type=StoredDescription)
    except msgspec.MsgspecError as wrong:
        logger.warning("what was stored of a model is of another version: %s", wrong)
        return None
    return stored if stored.settings == settings else None


def _key(model: str, group: str) -> bytes:
    return f"description/{model}/{group}".encode()
