"""An autoscaler that a test speaks for: tells the pool's replicas what to hold, and nothing else.

A process of its own, because it connects to the test's Ray. It stands under the autoscaler's name
before there is another one. Each line that it reads is a JSON list of models' names, those to hold
from then on; each line that it writes is the last report of a pool replica, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from dataclasses import asdict
from typing import Any

import ray

from deployments.contract.scaling.messages import PoolModel, PoolOrder, PoolReport

NAME = "headrace-autoscaler"


class StandIn:
    def __init__(self) -> None:
        self._order = PoolOrder(0)
        self._reports: dict[str, PoolReport] = {}
        self._changed = asyncio.Event()

    async def ping(self) -> None: ...

    async def pool(self, report: PoolReport, revision: int, timeout_s: float) -> PoolOrder:
        self._reports[report.replica] = report
        if self._order.revision == revision:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), timeout_s)
        return self._order

    async def hold(self, models: tuple[PoolModel, ...]) -> None:
        self._order = PoolOrder(self._order.revision + 1, models)
        self._changed.set()
        self._changed = asyncio.Event()

    async def reports(self) -> list[PoolReport]:
        return list(self._reports.values())


def main(models: dict[str, dict[str, Any]]) -> None:
    """`models`: what each is told, as `PoolModel.args`, by name."""
    from deployments.settings.load import settings_digest

    known = {
        name: PoolModel(name, settings_digest(args["settings"]), args)
        for name, args in models.items()
    }
    ray.init(address="auto", namespace="headrace", log_to_driver=False)
    actor = ray.remote(StandIn).options(name=NAME, lifetime="detached", num_cpus=0,
                                        max_concurrency=100).remote()  # fmt: skip
    ray.get(actor.ping.remote())
    print("[]", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked is not None:
            ray.get(actor.hold.remote(tuple(known[name] for name in asked)))
        print(json.dumps([asdict(each) for each in ray.get(actor.reports.remote())]), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
