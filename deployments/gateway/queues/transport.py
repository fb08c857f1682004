"""The seam to Ray Serve: calls pinned to one replica, foreign exceptions mapped where they enter.

Uses a model's handle with gRPC transport and pickle; the pin is the replica's id in `session_id`.
A failed call is one of three: `Unreached` (nothing started: choose again), `ReplicaDied` (it may
have started; a timeout that passed counts as that), or `ReplicaFault` (the replica's own code
raised, it lives on). Batches are one call each. A replica that generates sends all answers on one
stream, a single call that lasts: a call a message costs a quarter more
(docs/decisions/0011-one-stream-a-replica.md).
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Coroutine
from contextlib import contextmanager
from typing import Any, Protocol

import ray.exceptions
from ray import serve
from ray.serve.exceptions import RayServeException

from deployments.contract.app_names import MODEL_DEPLOYMENT
from deployments.contract.replica_directory import ReplicaGone
from deployments.contract.wire import BatchCall, BatchReply, GenerateCall, StepMessage

__all__ = ["ReplicaDied", "ReplicaFault", "ServeTransport", "Transport", "Unreached"]
_DROP_LIMIT_S = 5.0
UNREACHED_RETRY_S = 0.01  # an unstarted call is placed again, elsewhere, after so long
CALL_LIMIT_S = 10.0
SILENCE_S = 10.0  # the replica says something every second


class Unreached(Exception):
    """The call did not reach its replica; nothing was started."""


class ReplicaDied(Exception):
    """The replica died, hung or became unreachable with the call in its hands."""


class ReplicaFault(Exception):
    """The replica's own code raised; it lives on."""


class LeaseTasks:
    """Tasks that carry leases to replicas, outside any request's context: inside one, a caller's
    disconnect would cancel the whole batch (Serve cancels a request's children). `tasks`: those
    that end by themselves."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.tasks: set[asyncio.Task[None]] = set()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._start_lasting(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _start_lasting(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._loop.create_task(work, context=contextvars.Context())


class PinnedHandles:
    """Calls the replicas of a model's application; must be used from one event loop."""

    def __init__(self, app: str) -> None:
        self._base: Any = serve.get_deployment_handle(MODEL_DEPLOYMENT, app_name=app)
        self._pinned: dict[str, dict[str, Any]] = {}

    async def seed(self, timeout_s: float) -> None:
        """Starts the router (a handle alone does not): the running set arrives from then on."""
        describe: Any = self._base.options(method_name="describe")
        await asyncio.wait_for(_result(describe.remote()), timeout_s)

    def forget(self, running: set[str]) -> None:
        """Drops handles of replicas that are gone."""
        self._pinned = {uid: h for uid, h in self._pinned.items() if uid in running}

    async def ask(self, replica_id: str, method: str, timeout_s: float, *args: Any) -> Any:
        """One answer to one call."""
        response = self._handle(replica_id, method).remote(*args)
        with _mapped(replica_id):
            try:
                async with asyncio.timeout(timeout_s):
                    return await response
            except TimeoutError as late:
                response.cancel()
                raise ReplicaDied(f"no answer within {timeout_s:.1f} s") from late
            except asyncio.CancelledError:
                response.cancel()
                raise

    async def follow(
        self, replica_id: str, method: str, silence_s: float, *args: Any
    ) -> AsyncIterator[Any]:
        """All that one call yields; a silence of more than `silence_s` counts as died. Closing the
        iterator ends the call at the replica."""
        response = self._handle(replica_id, method, stream=True).remote(*args)
        try:
            while True:
                with _mapped(replica_id):
                    try:
                        async with asyncio.timeout(silence_s):
                            item = await anext(response)
                    except StopAsyncIteration:
                        return
                    except TimeoutError as late:
                        raise ReplicaDied(f"silent for {silence_s:.1f} s") from late
                yield item
        finally:
            response.cancel()

    def _handle(self, replica_id: str, method: str, stream: bool = False) -> Any:
        pinned = self._pinned.setdefault(replica_id, {})
        handle = pinned.get(method)
        if handle is None:
            handle = pinned[method] = self._base.options(
                method_name=method,
                session_id=replica_id,
                stream=stream,
                _by_reference=False,
                request_serialization="pickle",
                response_serialization="pickle",
            )
        return handle


async def _result(response: Any) -> Any:
    return await response


@contextmanager
def _mapped(replica_id: str) -> Any:
    """gRPC's own errors are transport; everything else came pickled from the replica's code."""
    try:
        yield
    except (Unreached, ReplicaDied, ReplicaFault):
        raise
    except ReplicaGone as gone:
        raise Unreached(replica_id) from gone
    except (ray.exceptions.RayActorError, ray.exceptions.RaySystemError) as died:
        raise ReplicaDied(str(died)) from died
    except RayServeException as fault:
        raise ReplicaDied(str(fault)) from fault
    except ray.exceptions.RayTaskError as fault:
        raise ReplicaFault(str(fault.cause)) from fault
    except Exception as fault:
        if type(fault).__module__.startswith("grpc"):
            raise ReplicaDied(str(fault)) from fault
        raise ReplicaFault(f"{type(fault).__name__}: {fault}") from fault


class Transport(Protocol):
    """`timeout_s`: seconds until the replica counts as died."""

    async def call(self, replica_id: str, call: BatchCall, timeout_s: float) -> BatchReply: ...

    async def drop(self, replica_id: str, gateway: str, lease_id: int) -> bool:
        """Asks the replica to return a batch unstarted; whether it could."""

    async def opened(self, replica_id: str, gateway: str, lease_id: int, timeout_s: float) -> bool:
        """Returns when a batch has started: True; False once it never will."""


class ServeTransport(PinnedHandles):
    async def call(self, replica_id: str, call: BatchCall, timeout_s: float) -> BatchReply:
        reply: BatchReply = await self.ask(replica_id, "infer", timeout_s, call)
        return reply

    async def drop(self, replica_id: str, gateway: str, lease_id: int) -> bool:
        return bool(await self.ask(replica_id, "drop", _DROP_LIMIT_S, gateway, lease_id))

    async def opened(self, replica_id: str, gateway: str, lease_id: int, timeout_s: float) -> bool:
        return bool(await self.ask(replica_id, "opened", timeout_s, gateway, lease_id))


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
