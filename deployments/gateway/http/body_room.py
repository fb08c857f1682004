"""How much memory may the bodies of all requests under way take together in one gateway?

In bytes, as read and as inflated, of bodies that did not arrive whole with their headers; those
small ones are not counted. Whoever would go over the limit is refused and may come again; a body
that is alone is always let in, so that the limit never forbids what `max_body_bytes` allows. It
does not know what parsing makes of a body: the pool's few workers bound that.
"""

from __future__ import annotations

from deployments.contract.errors import Overloaded

_RETRY_S = 1.0


class BodyRoom:
    """`held_bytes` of `limit_bytes`. Whoever takes gives back, whatever the request's ending."""

    def __init__(self, limit_bytes: int) -> None:
        self.held_bytes = 0
        self._limit_bytes = limit_bytes

    def take(self, size_bytes: int, own_bytes: int) -> None:
        """`own_bytes`: what this request holds already. Raises Overloaded, having taken nothing."""
        others = self.held_bytes - own_bytes
        if others and self.held_bytes + size_bytes > self._limit_bytes:
            raise Overloaded(
                "too many large bodies at once (gateway.limits.max_held_bytes)",
                retry_after_s=_RETRY_S,
                reason="bodies_full",
            )
        self.held_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
