"""What do gateways tell each other of inputs that end replicas or gateways, and what follows?

Reports travel with each push to the registry, and at once after a loss. They are bounded: at most
`MAX_INPUTS` inputs of all models together, the newest of each model. An input that was quarantined
elsewhere is refused here from then on, and ended where it waits or runs. Nothing waits for a
report: while the registry is away, what was known holds. `Gateway` calls this with each push.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from time import monotonic

from deployments.contract.registry import OF_GATEWAYS, CrashReport, CrashReports
from deployments.gateway.models.catalogue import Catalogue
from deployments.gateway.queues.lost_replicas import PoisonTracker

MAX_INPUTS = 256


class CrashExchange:
    """The reports of all models of one gateway, and of requests that have ended gateways. For the
    event loop's thread alone."""

    def __init__(self, models: Catalogue, of_gateways: PoisonTracker) -> None:
        self._models = models
        self._of_gateways = of_gateways
        self._news = asyncio.Event()  # a replica was lost since the last report

    def report(self) -> CrashReports:
        """What the others are to be told: by model, where there is something to tell."""
        self._news.clear()
        crashes = {name: model.queue.crashes for name, model in self._models.queued.items()}
        crashes[OF_GATEWAYS] = self._of_gateways
        for each in crashes.values():
            each.on_loss = self._news.set
        known = {name: each for name, each in crashes.items() if each}
        most, now = MAX_INPUTS // max(1, len(known)), monotonic()
        reports = {name: each.told(most, now) for name, each in known.items()}
        return {name: said for name, said in reports.items() if said.inputs or said.spent}

    def on_report(self, others: Mapping[str, CrashReports]) -> None:
        """Take in the last reports of all other gateways, by gateway."""
        now = monotonic()
        said = [reports[OF_GATEWAYS] for reports in others.values() if OF_GATEWAYS in reports]
        self._of_gateways.on_report(_bounded(said), len(others), now)
        for name, model in self._models.queued.items():
            said = [reports[name] for reports in others.values() if name in reports]
            quarantined = model.queue.crashes.on_report(_bounded(said), len(others), now)
            if quarantined:
                model.queue.end_quarantined(quarantined)

    async def news(self, within_s: float) -> None:
        """Wait until there is something to tell, at most so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), within_s)


def _bounded(reports: list[CrashReport]) -> list[CrashReport]:
    """The reports, cut to `MAX_INPUTS` inputs each, however long another gateway sent them."""
    return [CrashReport(each.inputs[:MAX_INPUTS], each.spent) for each in reports]
