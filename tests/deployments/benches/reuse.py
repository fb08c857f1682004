"""What does reuse before the queue cost a request, and what do they spare?

`python -m tests.deployments.benches.reuse`. The whole gateway and one replica in this process, no
network: processor time of the event loop's thread a request, the least of `--rounds` rounds, each
after the other in turn so that a busy machine hurts all alike. The device takes no time, so what a
hit spares of it is not in the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from in_process import Stand, ask

PLAIN = {"runtime": "synthetic", "options": {"base_ms": 0}, "slo": {"latency_ms": 60_000}}
KEPT = {**PLAIN, "cache": {"max_bytes": 1 << 28}}
SHARED = {**PLAIN, "coalesce": True}
AT_ONCE = 32
Send = Callable[[str, int], Awaitable[Any]]


def sender(stand: Stand, rows: int, width: int) -> Send:
    shape = [rows, width]

    async def send(model: str, first: int) -> None:
        data = list(range(first, first + rows * width))
        tensor = {"name": "ids", "datatype": "INT64", "shape": shape, "data": data}
        body = json.dumps({"inputs": [tensor]}).encode()
        answer = await ask(stand.app, "POST", f"/v2/models/{model}/infer", (), body)
        assert answer.status == 200, answer.body

    return send


async def one_by_one(send: Send, model: str, firsts: list[int]) -> float:
    """µs a request."""
    began = time.thread_time()
    for first in firsts:
        await send(model, first)
    return (time.thread_time() - began) / len(firsts) * 1e6


async def together(send: Send, model: str, firsts: list[int]) -> float:
    began = time.thread_time()
    for at in range(0, len(firsts), AT_ONCE):
        await asyncio.gather(*(send(model, first) for first in firsts[at : at + AT_ONCE]))
    return (time.thread_time() - began) / len(firsts) * 1e6


async def measured(rows: int, width: int, requests: int, rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        stand = Stand({"plain": PLAIN, "kept": KEPT, "shared": SHARED}, Path(folder))
        try:
            send, fresh = sender(stand, rows, width), itertools.count(0, rows * width)
            found: dict[str, list[float]] = {}
            for _ in range(rounds):
                for case, us in await round_of(send, fresh, requests):
                    found.setdefault(case, []).append(us)
            return {case: min(times) for case, times in found.items()}
        finally:
            stand.close()


async def round_of(send: Send, fresh: Iterator[int], requests: int) -> list[tuple[str, float]]:
    def new(count: int) -> list[int]:
        return list(itertools.islice(fresh, count))

    firsts, groups = new(requests), [n for n in new(requests // AT_ONCE) for _ in range(AT_ONCE)]
    return [
        ("all off", await one_by_one(send, "plain", firsts)),
        ("cache, miss", await one_by_one(send, "kept", firsts)),
        ("cache, hit", await one_by_one(send, "kept", firsts)),
        ("coalescing, alone", await one_by_one(send, "shared", firsts)),
        (f"all off, {AT_ONCE} at once", await together(send, "plain", groups)),
        (f"coalescing, {AT_ONCE} alike at once", await together(send, "shared", groups)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    for rows, width in ((1, 16), (1, 512), (32, 64)):
        found = asyncio.run(measured(rows, width, given.requests, given.rounds))
        print(f"{rows} x {width}: " + ", ".join(f"{case} {us:.0f}" for case, us in found.items()))


if __name__ == "__main__":
    main()
