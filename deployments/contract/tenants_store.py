"""The tenants in the cluster's own key-value store, where gateways on any node read them.

The text of a tenants file, whole and valid: whoever publishes has checked it. Beside it, by names
of their own, so that nobody's writing takes back another's: the hashes of keys that were revoked,
which what is published later does not bring back; and the switch of the controllers as an operator
has set it, which holds until tenants are published. Nothing here needs the registry or Serve.
Blocks for a round trip, see `cluster_store`.
"""

from __future__ import annotations

from deployments.contract import cluster_store

_KEY = "tenants"
_DEPLOYED = "tenants-deployed"
_REVOKED = "revoked-key/"
_FROZEN = "frozen"


def publish(text: str) -> None:
    """From now on the controllers' switch is as the text says."""
    cluster_store.put(_KEY, text.encode())
    cluster_store.delete(_FROZEN)


def freeze(frozen: bool) -> None:
    cluster_store.put(_FROZEN, b"1" if frozen else b"0")


def frozen() -> bool | None:
    """As an operator has set it since the tenants were published; None: nobody has. Raises as
    `fetch`."""
    found = cluster_store.get(_FROZEN)
    return None if found is None else found == b"1"


def publish_deployed(text: str, deployment: str) -> None:
    """What a deployment says, once: a process that is started again for the same one must not take
    back what an operator has published since."""
    mark = deployment.encode()
    if cluster_store.get(_DEPLOYED) != mark:
        publish(text)
        cluster_store.put(_DEPLOYED, mark)


def fetch() -> str | None:
    """None where nothing was published. Raises what Ray raises where the store does not answer."""
    found = cluster_store.get(_KEY)
    return None if found is None else found.decode()


def revoke(key_hash: str) -> None:
    """For good: no key is made twice."""
    cluster_store.put(_REVOKED + key_hash, b"1")


def revoked() -> frozenset[str]:
    """Raises as `fetch`."""
    return frozenset(name.removeprefix(_REVOKED) for name in cluster_store.names(_REVOKED))
