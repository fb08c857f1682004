"""The tenants in the cluster's own key-value store, where gateways on any node read them.

The text of a tenants file, whole and valid: whoever publishes has checked it. Blocks for a round
trip, see `cluster_store`.
"""

from __future__ import annotations

from deployments.contract import cluster_store

_KEY = "tenants"
_DEPLOYED = "tenants-deployed"


def publish(text: str) -> None:
    cluster_store.put(_KEY, text.encode())


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
