"""The cluster's resources, and those of them that are free. Each call blocks for a round trip.

If a cluster autoscaler has told Ray its upper bounds, those count as the cluster's resources;
otherwise what the nodes have now. The private API of Ray that this uses is tested by
tests/integration/test_ray_contract.py.
"""

from __future__ import annotations

from typing import Any

import ray
from ray._private.state import state


def max_resources() -> dict[str, float]:
    """The most that the cluster has or may come to have, by Ray's name of the resource."""
    may_become = state.get_max_resources_from_cluster_config()
    found: Any = ray.cluster_resources
    has = found() if may_become is None else may_become
    return {name: float(amount) for name, amount in has.items()}


def available_resources() -> dict[str, float]:
    """What is free now, by Ray's name of the resource."""
    found: Any = ray.available_resources
    return {name: float(amount) for name, amount in found().items()}
