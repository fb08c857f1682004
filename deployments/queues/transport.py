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


class Unreached(Exception):
    """The call did not reach its replica; nothing was started."""


class ReplicaDied(Exception):
    """The replica died, hung or became unreachable with the call in its hands."""


class ReplicaFault(Exception):
    """The replica's own code raised; it lives on."""


class Transport(Protocol):
    async def call(self, replica_id: str, call: BatchCall, timeout_s: float) -> BatchReply: ...


class ServeTransport:
    """Calls `infer` on the replicas of a model's application; must be used from one event loop."""

    def __init__(self, app: str) -> None:
        handle: Any = serve.get_deployment_handle(MODEL_DEPLOYMENT, app_name=app)
        self._describe = handle.options(method_name="describe")
        self._base = handle.options(
            method_name="infer",
            _by_reference=False,
            request_serialization="pickle",
            response_serialization="pickle",
        )
        self._pinned: dict[str, Any] = {}

    async def seed(self, timeout_s: float) -> None:
        """Starts the router (a handle alone does not): the running set arrives from then on."""
        await asyncio.wait_for(_result(self._describe.remote()), timeout_s)

    def forget(self, running: set[str]) -> None:
        """Drops handles of replicas that are gone."""
        self._pinned = {uid: h for uid, h in self._pinned.items() if uid in running}

    async def call(self, replica_id: str, call: BatchCall, timeout_s: float) -> BatchReply:
        """Raises Unreached, ReplicaDied or ReplicaFault. `timeout_s` passed counts as died."""
        handle = self._pinned.get(replica_id)
        if handle is None:
            handle = self._base.options(session_id=replica_id)
            self._pinned[replica_id] = handle
        response = handle.remote(call)
        try:
            async with asyncio.timeout(timeout_s):
                reply: BatchReply = await response
                return reply
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
