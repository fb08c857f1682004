"""Where the autoscaler is found, for those that speak to it and need none of what it is made of."""

from __future__ import annotations

from typing import Any

import ray

NAME = "headrace-autoscaler"
NAMESPACE = "headrace"


def running() -> Any:
    """The autoscaler actor's handle. Raises ValueError where there is none: the registry makes it,
    and makes it again."""
    return ray.get_actor(NAME, namespace=NAMESPACE)
