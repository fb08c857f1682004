"""All callers of the endurance bench, in a separate process.

In one process with the rest of the bench (which reads metrics and process tables and starts
commands) callers would be delayed, and the delay would count against the server. Callers send
requests until the bench stops them, and then send it their results. The ragged load ends by itself.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from loadtests.benches import changing_model, ragged_load
from loadtests.benches.request_log import ANYBODY, RequestLog
from loadtests.benches.runner import say
from loadtests.benches.slow_streams import StreamCallers
from loadtests.benches.streams_client import punctual
from loadtests.client.http1 import Target
from loadtests.client.tally import LoadResult

WRITER = "writer"
SAY_S = 30.0
LEFT_S = 180.0  # after the stop, until the last request has an outcome


@dataclass(frozen=True, slots=True)
class Asking:
    """The load of all callers."""

    url: str
    rate: float  # ragged requests a second
    seconds: float  # how long ragged requests are sent
    mischief: float  # share of ragged requests that misbehave
    streams: int  # callers of the streaming model
    slow: int  # callers of these that read slowly


@dataclass(slots=True)
class Asked:
    """The callers' results; empty until all callers have stopped."""

    log: RequestLog
    ragged: LoadResult | None = None


@contextmanager
def asking(plan: Asking) -> Iterator[Asked]:
    """Callers send requests while this context is entered; it yields their results, which are
    filled in at its end. Raises EOFError if the callers' process has died."""
    found = Asked(RequestLog())
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_ask, args=(plan, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield found
        ours.send("stop")
        if ours.poll(LEFT_S):
            found.log, found.ragged = ours.recv()
    finally:
        process.terminate()
        process.join()


def _ask(plan: Asking, pipe: Connection) -> None:
    with punctual():
        pipe.send(asyncio.run(_all(plan, pipe)))


async def _all(plan: Asking, pipe: Connection) -> tuple[RequestLog, LoadResult]:
    log, over = RequestLog(), asyncio.Event()
    callers = changing_model.Callers(plan.url, log.note)
    target = Target.parse(f"{plan.url}/v1/completions")
    streams = StreamCallers(target, WRITER, plan.streams, plan.slow, log.note)
    asked = [asyncio.create_task(each) for each in (callers.run(), streams.run(over))]
    ragged = asyncio.create_task(_ask_ragged(plan, log))
    saying = asyncio.create_task(_say(log))
    asyncio.get_running_loop().add_reader(pipe.fileno(), over.set)
    await over.wait()
    result = await ragged
    for who in (changing_model.MODEL, WRITER, ANYBODY):
        log.ended(who, time.monotonic())
    callers.stop()
    await asyncio.gather(*asked)
    saying.cancel()
    return log, result


async def _ask_ragged(plan: Asking, log: RequestLog) -> LoadResult:
    callers = ragged_load.callers(plan.url, plan.rate, plan.seconds, plan.mischief, log.note)
    callers.start()
    result = await callers.run()
    log.ended(ragged_load.MODEL, time.monotonic())
    return result


async def _say(log: RequestLog) -> None:
    began_s = time.monotonic()
    while True:
        await asyncio.sleep(SAY_S)
        gap_s, _ = log.gaps.get(ANYBODY, (0.0, 0.0))
        say(
            f"{(time.monotonic() - began_s) / 60:.1f} min: answered {log.total('answered')}, "
            f"refused {log.total('refused')}, lost {log.total('lost')}, longest gap {gap_s:.2f} s"
        )
