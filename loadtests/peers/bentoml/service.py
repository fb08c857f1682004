"""The work as a BentoML service, which `serve.py` runs with BentoML's own server.

A `batchable` API: BentoML's adaptive batching joins the rows of several calls, and refuses requests
that it expects to take longer than `max_latency_ms`, which is set to the SLO. One worker owns the
device. BentoML needs these settings when the module is imported, so they come from the environment.
Source: BentoML documentation, "Adaptive batching", "Configurations: traffic, workers".
"""

from __future__ import annotations

import os
from typing import Any

import bentoml

from loadtests.peers import options as peer_options

WORK = os.environ.get("PEER_WORK", peer_options.DEVICE)
BATCH = int(os.environ.get("PEER_BATCH", "8"))
MAX_LATENCY_MS = 100 if WORK == peer_options.DEVICE else 60_000


@bentoml.service(workers=1, traffic={"timeout": 30})
class Model:
    def __init__(self) -> None:
        self._run = peer_options.work_of(WORK)

    @bentoml.api(batchable=True, max_batch_size=BATCH, max_latency_ms=MAX_LATENCY_MS)
    def infer(self, items: list[Any]) -> list[Any]:
        return self._run(items)
