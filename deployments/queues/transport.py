"""The seam to Ray Serve: one pinned call a batch, foreign exceptions mapped where they enter.

Uses the model's handle with gRPC transport and pickle; the pin is the replica's id in `session_id`.
A failed call is one of three: `Unreached` (nothing started: choose again), `ReplicaDied` (it may
have started), or an exception that the replica itself raised (`ReplicaFault`).
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import ray.exceptions
from ray import serve
from ray.serve.exceptions import RayServeException

from deployments.cluster.app_names import MODEL_DEPLOYMENT
from deployments.queues.ledger import ReplicaGone
from deployments.queues.wire import BatchCall, BatchReply

_DROP_LIMIT_S = 5.0


class Unreached(Exception):
    """The call did not reach its replica; nothing was started."""


class ReplicaDied(Exception):
    """The replica died, hung or became unreachable with the call in its hands."""


class ReplicaFault(Exception):
    """The replica's own code raised; it lives on."""


class Transport(Protocol):
    """All raise Unreached, ReplicaDied or ReplicaFault; `timeout_s` passed counts as died."""

    async def call(self, replica_id: str, call: BatchCall, timeout_s: float) -> BatchReply: ...

    async def drop(self, replica_id: str, gateway: str, lease_id: int) -> bool:
        """Asks the replica to return a batch unstarted; whether it could."""

    async def opened(self, replica_id: str, gateway: str, lease_id: int, timeout_s: float) -> bool:
        """Returns when a batch has started: True; False once it never will."""


class ServeTransport:
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

    async def call(self, replica_id: str, call: BatchCall, timeout_s: float) -> BatchReply:
        reply: BatchReply = await self._ask(replica_id, "infer", timeout_s, call)
        return reply

    async def drop(self, replica_id: str, gateway: str, lease_id: int) -> bool:
        return bool(await self._ask(replica_id, "drop", _DROP_LIMIT_S, gateway, lease_id))

    async def opened(self, replica_id: str, gateway: str, lease_id: int, timeout_s: float) -> bool:
        return bool(await self._ask(replica_id, "opened", timeout_s, gateway, lease_id))

    def _handle(self, replica_id: str, method: str) -> Any:
        pinned = self._pinned.setdefault(replica_id, {})
        handle = pinned.get(method)
        if handle is None:
            handle = pinned[method] = self._base.options(
                method_name=method,
                session_id=replica_id,
                _by_reference=False,
                request_serialization="pickle",
                response_serialization="pickle",
            )
        return handle

    async def _ask(self, replica_id: str, method: str, timeout_s: float, *args: Any) -> Any:
        response = self._handle(replica_id, method).remote(*args)
        try:
            async with asyncio.timeout(timeout_s):
                return await response
        except ReplicaGone as gone:
            raise Unreached(replica_id) from gone
        except TimeoutError as late:
            response.cancel()
            raise ReplicaDied(f"no answer within {timeout_s:.1f} s") from late
        except (ray.exceptions.RayActorError, ray.exceptions.RaySystemError) as died:
            raise ReplicaDied(str(died)) from died
        except RayServeException as fault:
            raise ReplicaDied(str(fault)) from fault
        except ray.exceptions.RayTaskError as fault:
            raise ReplicaFault(str(fault.cause)) from fault
        except asyncio.CancelledError:
            response.cancel()
            raise
        except Exception as fault:
            raise _mapped(fault) from fault


async def _result(response: Any) -> Any:
    return await response


def _mapped(fault: Exception) -> Exception:
    """gRPC's own errors are transport; everything else came pickled from the replica's code."""
    if type(fault).__module__.startswith("grpc"):
        return ReplicaDied(str(fault))
    return ReplicaFault(f"{type(fault).__name__}: {fault}")
