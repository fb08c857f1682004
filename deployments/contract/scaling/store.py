"""What the autoscaler reads and keeps in the cluster's own key-value store.

The published document, and what must outlive the autoscaler's process. As `tenants_store`, the
store is Ray's global control store: it outlives every process of ours, and a head node that has an
external Redis. Each call blocks for a round trip and raises what Ray raises where the store does
not answer: call from a thread. Held in place by tests/integration/test_ray_contract.py.
"""

from __future__ import annotations

from ray.experimental import internal_kv

_NAMESPACE = b"headrace"
DOCUMENT = "scaling"
STATE = "scaling-state"


def put(name: str, text: str) -> None:
    internal_kv._internal_kv_put(name.encode(), text.encode(), overwrite=True, namespace=_NAMESPACE)


def get(name: str) -> str | None:
    """None where nothing was put."""
    found = internal_kv._internal_kv_get(name.encode(), namespace=_NAMESPACE)
    return None if found is None else bytes(found).decode()
