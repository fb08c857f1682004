"""The idle root of the pool's application.

Serve makes the root an ingress, which may have no router of its own. Gateways need a router that
sends a call to the very replica that they name, so the pool's replicas are a deployment below.
"""

from __future__ import annotations

from typing import Any


class PoolAnchor:
    """Does nothing."""

    def __init__(self, replicas: Any) -> None:
        """`replicas`: handle of the deployment below, which makes it part of the application."""
        self._replicas = replicas
