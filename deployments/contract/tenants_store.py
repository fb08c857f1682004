"""The tenants in the cluster's own key-value store, where gateways on any node read them.

The text of a tenants file, whole and valid: whoever publishes has checked it. It lives in Ray's
global control store, so it outlives every process of ours, and a head node that has an external
Redis. Blocks for a round trip: call from a thread. Held in place by
tests/integration/test_ray_contract.py.
"""

from __future__ import annotations

from ray.experimental import internal_kv

_NAMESPACE = b"headrace"
_KEY = b"tenants"
_DEPLOYED = b"tenants-deployed"


def publish(text: str) -> None:
    internal_kv._internal_kv_put(_KEY, text.encode(), overwrite=True, namespace=_NAMESPACE)


def publish_deployed(text: str, deployment: str) -> None:
    """What a deployment says, once: a process that is started again for the same one must not take
    back what an operator has published since."""
    mark = deployment.encode()
    if internal_kv._internal_kv_get(_DEPLOYED, namespace=_NAMESPACE) != mark:
        publish(text)
        internal_kv._internal_kv_put(_DEPLOYED, mark, overwrite=True, namespace=_NAMESPACE)


def fetch() -> str | None:
    """None where nothing was published. Raises what Ray raises where the store does not answer."""
    found = internal_kv._internal_kv_get(_KEY, namespace=_NAMESPACE)
    return None if found is None else bytes(found).decode()
