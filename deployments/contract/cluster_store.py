"""The cluster's own key-value store: bytes by key, for all that is ours.

Ray's global control store: it outlives every process of ours, and a head node that has an external
Redis. Each call blocks for a round trip and raises what Ray raises where the store does not answer:
call from a thread. Held in place by tests/integration/test_ray_contract.py.
"""

from __future__ import annotations

from ray.experimental import internal_kv

_NAMESPACE = b"headrace"


def put(key: str, data: bytes) -> None:
    internal_kv._internal_kv_put(key.encode(), data, overwrite=True, namespace=_NAMESPACE)


def get(key: str) -> bytes | None:
    """None where nothing was put."""
    found = internal_kv._internal_kv_get(key.encode(), namespace=_NAMESPACE)
    return None if found is None else bytes(found)


def delete(prefix: str) -> None:
    """What was put under names that begin so."""
    internal_kv._internal_kv_del(prefix.encode(), del_by_prefix=True, namespace=_NAMESPACE)


def names(prefix: str) -> list[str]:
    """Of what was put under names that begin so."""
    found = internal_kv._internal_kv_list(prefix.encode(), namespace=_NAMESPACE)
    return [bytes(name).decode() for name in found]
