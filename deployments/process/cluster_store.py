"""The cluster's own key-value store (Ray's global control store): bytes by key.

What is stored here outlives every Headrace process; with an external Redis it outlives the head
node too. Each call blocks for a round trip, so call from a thread; each raises StoreError when the
store does not answer within `ANSWER_S`. The private API of Ray that this uses is tested by
tests/integration/test_ray_contract.py; without a timeout its calls wait for ever for a store that
hangs.
"""

from __future__ import annotations

from typing import Any

ANSWER_S = 5.0
_NAMESPACE = b"headrace"


class StoreError(ConnectionError):
    """The store did not answer, or not in time. The message is for the user."""


def put(key: str, data: bytes) -> None:
    """Store the bytes under this key, in place of what was stored under it."""
    _ask("put", key, data, True)


def get(key: str) -> bytes | None:
    """The bytes stored under this key; None if there are none."""
    found = _ask("get", key)
    return None if found is None else bytes(found)


def delete(prefix: str) -> None:
    """Delete every entry whose key begins with `prefix`."""
    _ask("del", prefix, True)


def names(prefix: str) -> list[str]:
    """The keys that begin with `prefix`."""
    return [bytes(name).decode() for name in _ask("keys", prefix)]


def _ask(method: str, key: str, *more: Any) -> Any:
    # Late: who handles the error need not import Ray.
    from ray.exceptions import RayError
    from ray.experimental import internal_kv

    client: Any = internal_kv.internal_kv_get_gcs_client()  # type: ignore[no-untyped-call]
    if client is None:
        raise StoreError("this process is connected to no cluster, so it has no control store")
    call = getattr(client, f"internal_kv_{method}")
    try:
        return call(key.encode(), *more, _NAMESPACE, timeout=ANSWER_S)
    except RayError as silence:
        raise StoreError(
            f"Ray's control store (gcs_server) does not answer within {ANSWER_S:g} s: {silence}; "
            "requests are served meanwhile"
        ) from None
