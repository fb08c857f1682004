"""Which flows were given how many device seconds, and what follows for their accounts?

A flow is charged the predicted seconds of a batch or stream when that is sent. `ServedWork`
corrects the charge to the measured seconds, and tells the admission controllers what was served. It
does the same for work that replicas report to have done for other gateways. Seconds are those of
the reference group. `RequestTable` owns the one instance.
"""

from __future__ import annotations

from dataclasses import replace

from routers.api.requests import FlowWork, Report
from routers.shared.controllers import Controllers
from routers.state.flows import Flows
from routers.state.formed_batch import FormedBatch
from routers.state.rejection_cache import RejectionCache


class ServedWork:
    """Passes served work on to the flows' accounts, the controllers and the rejection cache."""

    def __init__(self, flows: Flows, controllers: Controllers, rejections: RejectionCache) -> None:
        self._flows = flows
        self._controllers = controllers
        self._rejections = rejections

    def settle(self, batch: FormedBatch, service_s: float | None, now: float) -> None:
        """The batch's lease has ended after `service_s` measured seconds; None: nothing was
        started, so its charges are refunded."""
        self._rejections.clear()
        if service_s is None:
            self._flows.refund(batch.paid, epoch=batch.epoch)
            return
        served = batch.split(service_s)
        self._flows.settle(batch.charges, served, epoch=batch.epoch)
        self._controllers.served(served, now, late=bool(batch.rank[0]))

    def charge(self, priority: int, tenant: str, seconds: float) -> None:
        """Charge a flow for what its stream takes beyond what was paid."""
        flow = self._flows.by_key.get((priority, tenant))
        if flow is not None:
            self._flows.charge(flow, seconds)

    def report(self, work: FlowWork, rank: tuple[int, int, float], now: float) -> None:
        """Tell the controllers what a running stream was given; the account is settled when the
        stream ends. `rank`: see `api.actions.Dispatch`."""
        self._controllers.served((work,), now, late=bool(rank[0]))

    def settle_stream(
        self, batch: FormedBatch, served_s: float, untold_s: float, now: float
    ) -> None:
        """The stream's lease has ended after `served_s` in all, of which the controllers have not
        been told `untold_s`."""
        self._rejections.clear()
        self._flows.settle(batch.charges, batch.split(served_s), epoch=batch.epoch)
        if untold_s > 0.0:
            priority, tenant, _ = batch.charges[0]
            self.report((priority, tenant, untold_s), batch.rank, now)

    def learn(self, report: Report, speed: float, now: float) -> None:
        """Take in what a report says of other gateways' work. `speed`: seconds of the reference
        group that a second of the replica's group is worth."""
        if speed != 1.0 and report.served:
            served = tuple([(p, tenant, seconds * speed) for p, tenant, seconds in report.served])
            report = replace(report, served=served)
        self._flows.learn(report, now)
        if report.served:
            self._controllers.served(report.served, now, late=False)
