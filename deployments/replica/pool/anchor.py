"""The root of the pool's application, idle: a root is an ingress, which may have no router of its
own, and gateways need one that sends a call to the very replica that they name."""

from __future__ import annotations

from typing import Any


class PoolAnchor:
    def __init__(self, replicas: Any) -> None:
        """`replicas`: handle of the deployment below, which makes it part of the application."""
        self._replicas = replicas
