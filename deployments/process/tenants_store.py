"""The tenants in the cluster's own key-value store, where gateways on any node read them.

Stored is the text of a tenants file, whole and already checked by whoever publishes it. Beside it,
in entries of their own so that one writer does not undo another's, are

- the hashes of revoked keys, one an entry: a tenants file that is published later does not bring
  back a revoked key;
- the controllers' switch as an operator has set it, which holds until tenants are published.

Nothing here needs the registry or Serve. Each call blocks for a round trip, see `cluster_store`.
"""

from __future__ import annotations

from deployments.process import cluster_store

_KEY = "tenants"
_DEPLOYED = "tenants-deployed"
_REVOKED = "revoked-key/"
_FROZEN = "frozen"


def publish(text: str) -> None:
    """Replace the tenants. `text`: of a tenants file that was checked. From now on the controllers'
    switch is as the text says."""
    cluster_store.put(_KEY, text.encode())
    cluster_store.delete(_FROZEN)


def freeze(frozen: bool) -> None:
    """Set the controllers' switch for an operator."""
    cluster_store.put(_FROZEN, b"1" if frozen else b"0")


def frozen() -> bool | None:
    """The controllers' switch as an operator has set it since the tenants were published; None if
    no operator has. Raises as `fetch`."""
    found = cluster_store.get(_FROZEN)
    return None if found is None else found == b"1"


def publish_deployed(text: str, deployment: str) -> None:
    """Publish a deployment's tenants, once a deployment: a process that is restarted for the same
    deployment must not undo what an operator has published since."""
    mark = deployment.encode()
    if cluster_store.get(_DEPLOYED) != mark:
        publish(text)
        cluster_store.put(_DEPLOYED, mark)


def fetch() -> str | None:
    """The text of the tenants file; None if nothing was published. Raises what Ray raises when the
    store does not answer."""
    found = cluster_store.get(_KEY)
    return None if found is None else found.decode()


def revoke(key_hash: str) -> None:
    """Revoke the key for ever: no key is made twice."""
    cluster_store.put(_REVOKED + key_hash, b"1")


def revoked() -> frozenset[str]:
    """Hashes of all revoked keys. Raises as `fetch`."""
    return frozenset(name.removeprefix(_REVOKED) for name in cluster_store.names(_REVOKED))
