"""What the autoscaler reads and keeps in the cluster's own key-value store, as text.

The published document, and what must outlive the autoscaler's process. Blocks for a round trip,
see `cluster_store`.
"""

from __future__ import annotations

from deployments.contract import cluster_store

DOCUMENT = "scaling"
STATE = "scaling-state"


def put(name: str, text: str) -> None:
    cluster_store.put(name, text.encode())


def get(name: str) -> str | None:
    """None where nothing was put."""
    found = cluster_store.get(name)
    return None if found is None else found.decode()
