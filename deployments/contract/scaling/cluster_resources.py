"""What the cluster has, and what of it is free. Each call blocks for a round trip.

Where a cluster autoscaler has told Ray how far it may go, that is what there may come to be;
otherwise what the nodes have now. Held in place by tests/integration/test_ray_contract.py.
"""

from __future__ import annotations

from typing import Any

import ray
from ray._private.state import state


def most_resources() -> dict[str, float]:
    """By name, as Ray counts them."""
    may_become = state.get_max_resources_from_cluster_config()
    found: Any = ray.cluster_resources
    has = found() if may_become is None else may_become
    return {name: float(amount) for name, amount in has.items()}


def available_resources() -> dict[str, float]:
    found: Any = ray.available_resources
    return {name: float(amount) for name, amount in found().items()}
