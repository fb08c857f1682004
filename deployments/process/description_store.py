"""Stores what replicas said of their models, so that an anchor can announce a model that sleeps.

Descriptions are in the cluster's key-value store: one entry a model and group, as a message of
`contract/codec.py`. Each names the digest of all settings that shape the model's replicas; a
description under other settings counts as unknown, and so does one of a version of Headrace that
this code does not read. Each call blocks for a round trip, see `cluster_store`. Tested by
tests/integration/test_zero.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from deployments.contract.codec import MessageCodec, OtherVersion
from deployments.contract.description import ModelDescription
from deployments.process import cluster_store

logger = logging.getLogger("headrace.anchor")


@dataclass(frozen=True, slots=True)
class StoredDescription:
    """A description and what it needs beside it."""

    settings: str  # digest of all of the model's settings
    description: ModelDescription
    tokenizer: bytes
    version: str = ""  # over all of the model's groups; "": it has none


STORED = MessageCodec[StoredDescription](StoredDescription)


def put(model: str, group: str, stored: StoredDescription) -> None:
    """Store it. Raises what Ray raises when the store does not answer."""
    cluster_store.put(_key(model, group), STORED.encode(stored))


def get(model: str, group: str, settings: str) -> StoredDescription | None:
    """What was stored under these settings; None if nothing was. Raises as `put`."""
    found = cluster_store.get(_key(model, group))
    return None if found is None else decode(found, settings)


def forget(model: str) -> None:
    """Delete what was stored of all the model's groups. Raises as `put`."""
    cluster_store.delete(_key(model, ""))


def decode(data: bytes, settings: str) -> StoredDescription | None:
    """The stored description; None if its version or its settings are others."""
    try:
        stored = STORED.decode(data)
    except OtherVersion as wrong:
        logger.warning("what was stored of a model is not used: %s", wrong)
        return None
    return stored if stored.settings == settings else None


def _key(model: str, group: str) -> str:
    return f"description/{model}/{group}"
