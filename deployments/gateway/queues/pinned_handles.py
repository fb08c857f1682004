"""The seam to Ray Serve: calls pinned to one replica, foreign exceptions mapped where they enter.

Uses a model's handle with gRPC transport and pickle; the pin is the replica's id in `session_id`.
A failed call is one of three: `Unreached` (nothing started: choose again), `ReplicaDied` (it may
have started), or an exception that the replica itself raised (`ReplicaFault`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import contextmanager
from typing import Any

import ray.exceptions
from ray import serve
from ray.serve.exceptions import RayServeException

from deployments.contract.app_names import MODEL_DEPLOYMENT
from deployments.contract.replica_directory import ReplicaGone


class Unreached(Exception):
    """The call did not reach its replica; nothing was started."""


class ReplicaDied(Exception):
    """The replica died, hung or became unreachable with the call in its hands."""


class ReplicaFault(Exception):
    """The replica's own code raised; it lives on."""


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
