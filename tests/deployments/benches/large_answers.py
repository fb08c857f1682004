"""What do the largest answers cost a gateway: its event loop's longest turn, and its memory?

`python -m tests.deployments.benches.large_answers [NAME]`: what tests/hostile/test_answers.py asks
and is answered, each in a process of its own; gateway, replica and a client that keeps nothing are
that process. Says the loop's longest turn (what it lacked a processor for left out) and by how much
resident memory grew. To compare commits, copy this file and what it imports.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "hostile")]

from test_answers import ANSWERED, model_of  # noqa: E402
from wide_models import asked, wide_stand  # noqa: E402

from tests.deployments.benches.loop_gaps import LoopGaps  # noqa: E402

_LOOK_S = 0.002


@contextmanager
def peak() -> Iterator[list[int]]:
    """Filled with the resident bytes that were added at most."""
    process, grown, ended = psutil.Process(), [0], threading.Event()
    before = process.memory_info().rss

    def look() -> None:
        while not ended.wait(_LOOK_S):
            grown[0] = max(grown[0], process.memory_info().rss - before)

    thread = threading.Thread(target=look)
    thread.start()
    yield grown
    ended.set()
    thread.join()


async def measure(name: str) -> str:
    width, kind, (path, body) = ANSWERED[name]
    runtime, options = model_of(width, kind)
    async with wide_stand(runtime, Path(tempfile.mkdtemp()), **options) as stand:
        gc.collect()
        gaps, began = LoopGaps(), time.perf_counter()
        with peak() as grown:
            got = await asked(stand.app, path, json.dumps(body).encode())
        took_s = time.perf_counter() - began
        await asyncio.sleep(0.01)
        gaps.end()
    worst = max(gaps._gaps, key=lambda gap: gap.late_s - gap.unplaced_s)
    return (
        f"{name}: {got.status}, {got.size / 1e6:.1f} MB in {took_s:.2f} s; longest turn "
        f"{(worst.late_s - worst.unplaced_s) * 1e3:.0f} ms (of that {worst.locked_s * 1e3:.0f} for "
        f"the interpreter's lock); grew by {grown[0] / 1e6:.0f} MB"
    )


def main() -> None:
    if len(sys.argv) > 1:
        logging.disable(logging.WARNING)
        print(asyncio.run(measure(sys.argv[1])), flush=True)
        return
    for name in ANSWERED:
        subprocess.run([sys.executable, "-m", "tests.deployments.benches.large_answers", name])


if __name__ == "__main__":
    main()
