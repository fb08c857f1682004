"""What becomes of the requests that a gateway has when it must end?

They get `gateway.drain_s` to finish. An answer that is being streamed and is not whole by then ends
with an error event. What happens to the others depends on what ends:
- The whole server, or the only gateway: they are refused, since HAProxy would have nobody to ask.
- One of several gateways, stopped by Serve: nothing. Serve closes their connections, and HAProxy
  asks another gateway.
- A gateway, by SIGTERM: the same, and the process ends here. Ray's own handler would leave it half
  ended until Serve's health checks give it up 10 s later.
For the event loop's thread alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import ray._private.worker

from deployments.contract import errors
from deployments.gateway.http import strict_protocol
from deployments.gateway.models.catalogue import Catalogue

_LOOK_S = 0.1  # as often as uvicorn looks whether it should end
_SEND_S = 0.3  # for the last bytes of the last answers
logger = logging.getLogger("headrace.gateway")


class GatewayShutdown:
    """The end of one gateway. `under_way`: as many requests as it has; `gateways`: as many live,
    this one included; `leave` ends its process."""

    def __init__(
        self,
        models: Catalogue,
        drain_s: float,
        under_way: Callable[[], int],
        gateways: Callable[[], int],
        leave: Callable[[], Awaitable[None]],
    ) -> None:
        self._models = models
        self._drain_s = drain_s
        self._under_way = under_way
        self._gateways = gateways
        self._leave = leave
        self._cuts_at: asyncio.TimerHandle | None = None
        self._begun_only = True  # of what there is when the time is over
        self._leaving: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Hear from now on of everything that ends this gateway."""
        self._models.on_drain = self.server_ends
        strict_protocol.on_stop(self.gateway_ends)
        _on_sigterm(self.terminated)

    def server_ends(self) -> None:
        """The registry says that all gateways drain."""
        self._cut_later(begun_only=False)

    def gateway_ends(self) -> None:
        """This gateway's server accepts no new connections any more."""
        self._cut_later(begun_only=True)

    def terminated(self) -> None:
        """SIGTERM: accept nothing new, and end once nothing is under way."""
        if self._leaving is None:
            logger.warning("SIGTERM: ending, within %g s at most", self._drain_s)
            self._leaving = asyncio.get_running_loop().create_task(self._finish_and_leave())

    def _cut_later(self, *, begun_only: bool) -> None:
        self._begun_only = self._begun_only and begun_only
        if self._cuts_at is None:
            self._cuts_at = asyncio.get_running_loop().call_later(self._drain_s, self._cut)

    def _cut(self) -> None:
        error = errors.Overloaded(
            f"the server ended before the answer was complete, {self._drain_s:g} s after it was "
            "told to (gateway.drain_s); send the request again",
            retry_after_s=errors.NOT_READY_S,
            reason="draining",
        )
        for model in self._models.queued.values():
            model.queue.end_all(error, begun_only=self._begun_only and self._gateways() > 1)

    async def _finish_and_leave(self) -> None:
        await self.finished()
        await self._leave()

    async def finished(self) -> None:
        """Accept nothing new. Returns once nothing is under way, or the time is over."""
        self.gateway_ends()
        strict_protocol.stop_accepting()
        loop = asyncio.get_running_loop()
        end = loop.time() + self._drain_s
        await asyncio.sleep(_LOOK_S)  # until uvicorn has closed what is idle
        while self._under_way() and loop.time() < end:  # noqa: ASYNC110 - as uvicorn does
            await asyncio.sleep(_LOOK_S)
        await asyncio.sleep(_SEND_S)


def _on_sigterm(told: Callable[[], None]) -> None:
    """Call `told` on this loop at the first SIGTERM; a second one is Ray's again. Python installs
    handlers from the main thread only, where Ray's core runs; so Ray's own handler stays, and what
    it calls is replaced. tests/integration/test_ray_contract.py holds that in place."""
    worker: Any = ray._private.worker
    loop, rays = asyncio.get_running_loop(), worker.raise_sys_exit_with_custom_error_message

    def asked(*_: Any, **__: Any) -> None:
        worker.raise_sys_exit_with_custom_error_message = rays
        loop.call_soon_threadsafe(told)

    worker.raise_sys_exit_with_custom_error_message = asked
