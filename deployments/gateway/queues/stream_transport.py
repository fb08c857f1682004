"""What a gateway asks of a replica that generates: one stream for all, short calls beside it.

The stream is one call of Serve's that lasts, not a call a message: that costs a fifth of a
millisecond a message on each side, a quarter of what asking for each message would
(docs/decisions/0011-one-stream-a-replica.md). Errors as in `deployments.gateway.queues.transport`.

To be kept by whoever uses it: a gateway opens a replica's stream, waits for the first message,
which is empty and comes at once, and begins requests only then. When the stream ends or fails, all
that ran on it is lost. A replica that is to go waits until its streams are closed: close one when
its replica leaves the running set and nothing of it is awaited any more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from deployments.contract.stream_wire import GenerateCall, StepMessage
from deployments.gateway.queues.pinned_handles import PinnedHandles, Unreached

CALL_LIMIT_S = 10.0
SILENCE_S = 10.0  # the replica says something every second


class StreamTransport(Protocol):
    async def begin(self, replica_id: str, call: GenerateCall) -> None:
        """Returns when the replica has the request; `Unreached` where no stream is open."""

    async def abort(self, replica_id: str, lease_ids: list[int]) -> None:
        """Asks the replica to end requests; their last pieces still come."""

    def messages(self, replica_id: str) -> AsyncIterator[StepMessage]:
        """Opens this gateway's stream, in place of one that is open. Closing the iterator closes
        the stream and aborts what runs on it."""


class ServeStreamTransport(PinnedHandles):
    def __init__(self, app: str, gateway: str) -> None:
        super().__init__(app)
        self._gateway = gateway

    async def begin(self, replica_id: str, call: GenerateCall) -> None:
        if not await self.ask(replica_id, "begin", CALL_LIMIT_S, call):
            raise Unreached(f"{replica_id} has no stream to {call.gateway}")

    async def abort(self, replica_id: str, lease_ids: list[int]) -> None:
        await self.ask(replica_id, "abort", CALL_LIMIT_S, self._gateway, lease_ids)

    def messages(self, replica_id: str) -> AsyncIterator[StepMessage]:
        return self.follow(replica_id, "messages", SILENCE_S, self._gateway)
