"""Reports to the autoscaler what this gateway's models are asked for, and reads back its decisions.

Once a second, and at once when a request comes that no replica can be sent, or more waits than half
of the SLO's slack; while that lasts after 0.1, 0.2, 0.4 s, then once a second again. It runs in a
task of its own, which a call without an answer holds up and nothing else: counters lose nothing by
it, and the last answer remains valid, less the time that has passed. A reading is made of the
snapshot of the model's core; work is seconds of the reference group (`routers.state.offered`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from autoscaling.types import DemandReading
from deployments.contract.scaling.messages import GatewayReport, GroupLoad, ModelLoad, ModelOutlook
from deployments.gateway.models.catalogue import Catalogue
from deployments.gateway.models.served_model import ServedModel
from routers.api.snapshot import GroupSnapshot, Snapshot

EVERY_S = 1.0
MIN_S = 0.1
ANSWER_S = 2.0
clock = time.monotonic
logger = logging.getLogger("headrace.scaling")

Tell = Callable[[GatewayReport], Awaitable[Mapping[str, ModelOutlook]]]


class DemandReporter:
    """`gateway`: as Serve names this replica. `tell` raises where the autoscaler is away."""

    def __init__(self, gateway: str, models: Catalogue, tell: Tell) -> None:
        self._gateway = gateway
        self._models = models
        self._tell = tell
        self._crossed = asyncio.Event()
        self._told_at = -EVERY_S
        self._pause_s = MIN_S
        self._outlooks: Mapping[str, ModelOutlook] = {}
        self._heard_at = 0.0
        self._is_away = False
        models.on_crossing = self._crossed.set

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._due()
            await self._exchange()

    async def _due(self) -> None:
        """Returns when it is time: a second after the last report, or sooner after a crossing."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._told_at + EVERY_S - clock()):
                await self._crossed.wait()
        await asyncio.sleep(self._told_at + self._pause_s - clock())
        self._crossed.clear()

    async def _exchange(self) -> None:
        self._told_at = clock()
        report, presses = self._report()
        self._pause_s = min(2.0 * self._pause_s, EVERY_S) if presses else MIN_S
        try:
            async with asyncio.timeout(ANSWER_S):
                outlooks = await self._tell(report)
        except Exception as fault:
            if not self._is_away:
                logger.warning("the autoscaler does not answer, going on without: %r", fault)
            self._is_away = True
            self._keep_unserved(report)
        else:
            self._is_away, self._outlooks, self._heard_at = False, outlooks, clock()
        self._models.take_outlooks(self._outlooks, clock() - self._heard_at)

    def _keep_unserved(self, report: GatewayReport) -> None:
        """Requests that nobody heard of wake no model: counters that an autoscaler begins with say
        nothing to it."""
        for name, served in self._models.served.items():
            if name in report.models and report.models[name].demand.urgent:
                served.queue.unserved = True

    def _report(self) -> tuple[GatewayReport, bool]:
        """And whether any model has crossed."""
        loads, presses = {}, False
        for name, served in self._models.served.items():
            loads[name], crossed = _load(served)
            presses |= crossed
        return GatewayReport(self._gateway, loads, self._models.frozen), presses


def _load(served: ServedModel) -> tuple[ModelLoad, bool]:
    queue = served.queue
    core = queue.snapshot()
    queue.crossing_s = crossing_s(core, served.description.scheduling.slo_s)
    none = not queue.replicas and (queue.unserved or core.waiting_rows > 0)
    unserved = none or core.stranded
    queue.unserved = False
    return model_load(core, unserved=unserved), unserved or core.backlog_s > queue.crossing_s


_HALF = 0.5  # of the slack that the SLO leaves: a backlog that takes longer is told of at once
_MIN_SLACK = 0.1  # of the SLO


def model_load(core: Snapshot, *, unserved: bool) -> ModelLoad:
    """`unserved`: a request has come lately that no replica could be sent."""
    offered = core.offered
    demand = DemandReading(
        offered_s=offered.work_s,
        offered_sq_s2=offered.sq_s2,
        requests=offered.requests,
        served_s=offered.served_s,
        refused=dict(offered.refused),
        by_length=dict(offered.by_length),
        longer_s=dict(offered.longer),
        backlog_s=core.backlog_s,
        longer_backlog_s=dict(core.longer_backlog),
        oldest_wait_s=core.oldest_wait_s,
        urgent=unserved,
        running=core.leased_rows,
    )
    return ModelLoad(demand, {group.name: _group(group) for group in core.groups})


def crossing_s(core: Snapshot, slo_s: float) -> float:
    """Work that waits, from which on more replicas may be needed at once: what those that run do in
    half of the time that the SLO leaves beside a batch."""
    capacity = sum(group.running * group.speed for group in core.groups)
    batch_s = max((group.planned_p99_s for group in core.groups if group.running), default=0.0)
    return capacity * _HALF * max(slo_s - batch_s, _MIN_SLACK * slo_s)


def _group(group: GroupSnapshot) -> GroupLoad:
    return GroupLoad(
        hot=group.running,
        speed=group.speed,
        batch_s=group.planned_s,
        batch_p99_s=group.planned_p99_s,
        batch_scv=group.planned_scv,
    )
