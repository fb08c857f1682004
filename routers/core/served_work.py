"""What was served: put to the accounts of its flows, and told to the controllers that ask for it.

A batch or stream was charged what it was predicted to take when it was sent; here that is put right
by what it took, here and, by what replicas say, at other gateways.
"""

from __future__ import annotations

from dataclasses import replace

from routers.api.requests import FlowWork, Report
from routers.policies.admission.admission_pipeline import RejectionCache
from routers.policies.admission.controllers import Admission
from routers.state.flows import Flows
from routers.state.formed_batch import FormedBatch


class ServedWork:
    def __init__(self, flows: Flows, admission: Admission, rejections: RejectionCache) -> None:
        self._flows = flows
        self._admission = admission
        self._rejections = rejections

    def settle(self, batch: FormedBatch, service_s: float | None, now: float) -> None:
        """The batch took so long; None: nothing was started, nobody pays."""
        self._rejections.clear()
        if service_s is None:
            self._flows.refund(batch.paid, epoch=batch.epoch)
            return
        served = batch.split(service_s)
        self._flows.settle(batch.charges, served, epoch=batch.epoch)
        if not batch.rank[0]:
            self._admission.best_effort_capacity.worked(service_s * batch.speed, now)
        self._admission.feasibility.served(served, now)

    def charge(self, priority: int, tenant: str, seconds: float) -> None:
        """A stream takes so much more than its flow has paid for."""
        flow = self._flows.by_key.get((priority, tenant))
        if flow is not None:
            self._flows.charge(flow, seconds)

    def tell(self, work: FlowWork, rank: tuple[int, int, float], now: float) -> None:
        """A stream of this rank was given so much, of which its flow's account is settled later."""
        self._admission.feasibility.served((work,), now)
        if not rank[0]:
            self._admission.best_effort_capacity.worked(work[2], now)

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
        self._admission.feasibility.served(report.served, now)
        for _, _, seconds in report.served:
            self._admission.best_effort_capacity.worked(seconds, now)
