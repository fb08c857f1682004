"""The adapters that operators have added or taken out while models run, in the cluster's store.

By model: sources by name, None for one of the settings that is taken out. The publisher of Serve's
list writes them; replicas and gateways read them about once a second. Each call blocks for a round
trip, see `cluster_store`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from deployments.process import cluster_store

_KEY = "adapters"
ByHand = Mapping[str, str | None]
"""Of one model."""


def publish(adapters: Mapping[str, ByHand]) -> None:
    """Replace them. What is there already is not written again."""
    data = json.dumps({model: dict(each) for model, each in adapters.items()}, sort_keys=True)
    if (cluster_store.get(_KEY) or b"{}") != data.encode():
        cluster_store.put(_KEY, data.encode())


def fetch() -> dict[str, ByHand]:
    """Raises what Ray raises when the store does not answer."""
    found: dict[str, ByHand] = json.loads(cluster_store.get(_KEY) or b"{}")
    return found
