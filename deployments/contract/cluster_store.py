"""The cluster's own key-value store (Ray's global control store): bytes by key.

What is stored here outlives every Headrace process; with an external Redis it outlives the head
node too. Each call blocks for a round trip, so call from a thread, and raises what Ray raises when
the store does not answer. The private API of Ray that this uses is tested by
tests/integration/test_ray_contract.py.
"""

from __future__ import annotations

from ray.experimental import internal_kv

_NAMESPACE = b"headrace"


def put(key: str, data: bytes) -> None:
    """Store the bytes under this key, in place of what was stored under it."""
    internal_kv._internal_kv_put(key.encode(), data, overwrite=True, namespace=_NAMESPACE)


def get(key: str) -> bytes | None:
    """The bytes stored under this key; None if there are none."""
    found = internal_kv._internal_kv_get(key.encode(), namespace=_NAMESPACE)
    return None if found is None else bytes(found)


def delete(prefix: str) -> None:
    """Delete every entry whose key begins with `prefix`."""
    internal_kv._internal_kv_del(prefix.encode(), del_by_prefix=True, namespace=_NAMESPACE)


def names(prefix: str) -> list[str]:
    """The keys that begin with `prefix`."""
    found = internal_kv._internal_kv_list(prefix.encode(), namespace=_NAMESPACE)
    return [bytes(name).decode() for name in found]
