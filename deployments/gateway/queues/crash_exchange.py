"""What this gateway tells the others of inputs that end replicas, and what it makes of their words.

Said with each push to the registry, at once after a loss, and bounded: some hundred inputs of all
models together, the newest of each. What is convicted elsewhere is refused here from then on, and
ended where it waits or runs. Nothing waits for it: a registry that is away leaves what is known.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from time import monotonic

from deployments.contract.crash_reports import CrashReport, CrashReports
from deployments.gateway.queues.catalogue import Catalogue

MOST_INPUTS = 256


class CrashExchange:
    """For the event loop's thread alone."""

    def __init__(self, models: Catalogue) -> None:
        self._models = models
        self._news = asyncio.Event()

    def report(self) -> CrashReports:
        """Of the models of which there is something to say."""
        self._news.clear()
        crashes = {name: model.queue.crashes for name, model in self._models.queued.items()}
        for each in crashes.values():
            each.on_loss = self._news.set
        known = {name: each for name, each in crashes.items() if each}
        most, now = MOST_INPUTS // max(1, len(known)), monotonic()
        reports = {name: each.told(most, now) for name, each in known.items()}
        return {name: said for name, said in reports.items() if said.inputs or said.spent}

    def hear(self, others: Mapping[str, CrashReports]) -> None:
        """What every other gateway has said last, by gateway."""
        now = monotonic()
        for name, model in self._models.queued.items():
            said = [reports[name] for reports in others.values() if name in reports]
            convicted = model.queue.crashes.hear(_bounded(said), len(others), now)
            if convicted:
                model.queue.end_convicted(convicted)

    async def news(self, within_s: float) -> None:
        """Returns once there is something to tell, or the time has passed."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), within_s)


def _bounded(reports: list[CrashReport]) -> list[CrashReport]:
    """Whatever another gateway may say."""
    return [CrashReport(each.inputs[:MOST_INPUTS], each.spent) for each in reports]
