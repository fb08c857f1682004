"""The autoscaler's texts in the cluster's key-value store: the settings document and its own state.

Each call blocks for a round trip, see `cluster_store`.
"""

from __future__ import annotations

from deployments.process import cluster_store

DOCUMENT = "scaling"  # the published `ScalingDocument`
PINS = "scaling-pins"  # the numbers by hand that the autoscaler was last told, JSON
STATE = "scaling-state"  # what must outlive the autoscaler's process


def put(name: str, text: str) -> None:
    cluster_store.put(name, text.encode())


def get(name: str) -> str | None:
    """The text stored under this name; None if there is none."""
    found = cluster_store.get(name)
    return None if found is None else found.decode()
