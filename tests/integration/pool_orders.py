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
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray

from deployments.contract.scaling.messages import (
    OUTLOOKS,
    POOL_ORDER,
    POOL_REPORT,
    PoolModel,
    PoolOrder,
    PoolReport,
)
from deployments.process.code_version import code_version

NAME = "headrace-autoscaler"
_GONE_S = 5.0  # without a report: a replica reports once a second


class StandIn:
    def __init__(self) -> None:
        self._order = PoolOrder(0)
        self._reports: dict[str, tuple[float, PoolReport]] = {}
        self._changed = asyncio.Event()

    async def ping(self) -> None: ...

    async def code(self) -> str:
        """This one's, so that nobody replaces it."""
        return code_version()

    async def started(self, start: Any) -> None: ...

    async def described(self, model: str, known: bool) -> None: ...

    async def report(self, report: Any) -> bytes:
        return OUTLOOKS.encode({})

    async def exchange(self, observed: Any) -> dict[str, int]:
        """Says nothing: what runs stays."""
        return {}

    async def status(self) -> dict[str, Any]:
        return {}

    async def pool(self, said: bytes, revision: int, timeout_s: float) -> bytes:
        report = POOL_REPORT.decode(said)
        self._reports[report.replica] = time.monotonic(), report
        if self._order.revision == revision:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), timeout_s)
        return POOL_ORDER.encode(self._order)

    async def hold(self, models: tuple[PoolModel, ...]) -> None:
        self._order = PoolOrder(self._order.revision + 1, models)
        self._changed.set()
        self._changed = asyncio.Event()

    async def reports(self) -> list[PoolReport]:
        """Of replicas that still report."""
        least = time.monotonic() - _GONE_S
        return [report for told, report in self._reports.values() if told > least]


def main(file: Path) -> None:
    """`file`: the settings that are to be deployed."""
    from deployments.control.scaling.scaling_terms import scaling_document
    from deployments.settings_files.load import load

    pooled = scaling_document(load(file, here=False, absolute=False)).pool_models
    known = {each.name: each for each in pooled}
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
    ray.kill(actor)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
