"""What was served: put to the accounts of its flows, and told to the controllers that ask for it.

A batch or stream was charged what it was predicted to take when it was sent; here that is put right
by what it took, here and, by what replicas say, at other gateways.
"""

from __future__ import annotations

from dataclasses import replace

from routers.api.requests import FlowWork, Report
from routers.core.controllers import Controllers
from routers.state.flows import Flows
from routers.state.formed_batch import FormedBatch
from routers.state.rejection_cache import RejectionCache


class ServedWork:
    def __init__(self, flows: Flows, controllers: Controllers, rejections: RejectionCache) -> None:
        self._flows = flows
        self._controllers = controllers
        self._rejections = rejections

    def settle(self, batch: FormedBatch, service_s: float | None, now: float) -> None:
        """The batch took so long; None: nothing was started, nobody pays."""
        self._rejections.clear()
        if service_s is None:
            self._flows.refund(batch.paid, epoch=batch.epoch)
            return
        served = batch.split(service_s)
        self._flows.settle(batch.charges, served, epoch=batch.epoch)
        self._controllers.served(served, now, late=bool(batch.rank[0]))

    def charge(self, priority: int, tenant: str, seconds: float) -> None:
        """A stream takes so much more than its flow has paid for."""
        flow = self._flows.by_key.get((priority, tenant))
        if flow is not None:
            self._flows.charge(flow, seconds)

    def tell(self, work: FlowWork, rank: tuple[int, int, float], now: float) -> None:
        """A stream of this rank was given so much, of which its flow's account is settled later."""
        self._controllers.served((work,), now, late=bool(rank[0]))

    def settle_stream(
        self, batch: FormedBatch, served_s: float, untold_s: float, now: float
    ) -> None:
        """The stream was given so much in all, of which so much is news to the controllers."""
        self._rejections.clear()
        self._flows.settle(batch.charges, batch.split(served_s), epoch=batch.epoch)
        if untold_s > 0.0:
            priority, tenant, _ = batch.charges[0]
            self.tell((priority, tenant, untold_s), batch.rank, now)

    def learn(self, report: Report, speed: float, now: float) -> None:
        """What a reply says of other gateways' work; `speed`: of its replica's group."""
        if speed != 1.0 and report.served:
            served = tuple([(p, tenant, seconds * speed) for p, tenant, seconds in report.served])
            report = replace(report, served=served)
        self._flows.learn(report, now)
        if report.served:
            self._controllers.served(report.served, now, late=False)
