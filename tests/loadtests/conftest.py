"""A run that never was, for what shows and judges records."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from loadtests.results.record import Client, Record, Second, TenantLengthStats

MakeRecord = Callable[..., Record]
SECONDS = 60


@pytest.fixture
def make_record() -> MakeRecord:
    return made_up


def made_up(*, seed: int = 1, slower: float = 1.0, streams: bool = False, **changes: Any) -> Record:
    """Two tenants, three lengths, a burst in the middle that is partly refused. `slower`: by how
    much every latency is multiplied."""
    random = Random(seed)
    cells = {
        tenant: {edge: TenantLengthStats() for edge in (32, 128, 512)}
        for tenant in ("chat", "crawl")
    }
    time_series, sizes = [], {}
    for at_s in range(SECONDS):
        burst = 20 <= at_s < 30
        second = Second(under_way=random.randint(2, 8) + 40 * burst)
        latencies = []
        for _ in range(400 if burst else 200):
            latency_s = _request(random, cells, second, slower * (3.0 if burst else 1.0), streams)
            if latency_s is not None:
                latencies.append(latency_s * 1e3)
                size = min(32, 1 + int(random.expovariate(0.12)))
                sizes[size] = sizes.get(size, 0) + 1
        latencies.sort()
        second.p50_ms = latencies[len(latencies) // 2]
        second.p99_ms = latencies[int(len(latencies) * 0.99)]
        time_series.append(second)
    lag = Client(connections=64, sent=sum(s.offered for s in time_series), cpu_us=41.5)
    for _ in range(1000):
        lag.lag.add(random.expovariate(5000.0))
    known = {
        "name": "ragged-mix", "about": "Short, middle and long rows.", "protocol": "v2",
        "url": "http://127.0.0.1:8000", "model": "device", "started": "2026-11-21 12:00:00 UTC",
        "command": "headrace load ragged-mix.yaml --url http://127.0.0.1:8000",
        "machine": "two cores, 8 GiB", "versions": {"headrace": "0.1.0", "python": "3.11.7"},
        "scenario": {"settings": "device.yaml", "duration_s": SECONDS, "arrivals": {"rate": 200}},
        "seconds": float(SECONDS), "slo_ms": 100.0, "edges": (32, 128, 512), "cells": cells,
        "time_series": time_series, "batch_sizes": sizes, "tokens": 700, "padded_tokens": 1000,
        "client": lag,
    }  # fmt: skip
    return Record(**known | changes)


def _request(
    random: Random,
    cells: dict[str, dict[int, TenantLengthStats]],
    second: Second,
    slower: float,
    streams: bool,
) -> float | None:
    """Sends one and gives its latency; None where it was refused."""
    edge = random.choices((32, 128, 512), (70, 25, 5))[0]
    cell = cells[random.choices(("chat", "crawl"), (3, 1))[0]][edge]
    cell.offered += 1
    second.offered += 1
    if slower >= 3.0 and random.random() < 0.2:
        reason = random.choice(("503", "429", "timeout"))
        cell.reasons[reason] = cell.reasons.get(reason, 0) + 1
        turned_away = reason != "timeout"
        cell.rejected += turned_away
        second.rejected += turned_away
        second.failed += not turned_away
        return None
    latency_s = slower * random.lognormvariate(-4.2 + edge / 600, 0.45)
    cell.latency.add(latency_s)
    cell.wait.add(latency_s * random.random())
    in_time = latency_s <= 0.1
    cell.in_slo += in_time
    second.answered += 1
    second.in_slo += in_time
    if streams:
        cell.tokens_out += 50
        cell.first.add(latency_s)
        cell.per_token.add(0.01 * random.lognormvariate(0, 0.2))
    return latency_s
