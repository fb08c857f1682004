"""What a gap of the event loop is put down to."""

from __future__ import annotations

import asyncio
import time

from tests.deployments.benches.loop_gaps import Gap, LoopGaps, described


def test_what_neither_computed_nor_lacked_a_processor_waited_for_the_lock() -> None:
    assert Gap(0.010, 0.002, 0.005).locked_s == 0.010 - 0.002 - 0.005
    assert Gap(0.010, 0.006, 0.005).locked_s == 0.0


def test_long_gaps_are_put_down_to_what_they_were() -> None:
    short = [Gap(0.001, 0.001, 0.0)] * 97
    long = [Gap(0.010, 0.010, 0.0), Gap(0.020, 0.0, 0.020), Gap(0.010, 0.0, 0.0)]
    assert described([*short, *long]) == (
        "loop late p99 20.0, longest 20.0 ms; with a processor at hand p99 10.0, longest 10.0 ms; "
        "3 times over 5 ms (computing 25 %, interpreter lock 25 %, no processor 50 %)"
    )
    assert described([]) == "no turn"


async def test_a_loop_that_computes_is_late_by_that() -> None:
    gaps = LoopGaps()
    end = time.thread_time() + 0.008
    while time.thread_time() < end:
        pass
    while not gaps._gaps:  # noqa: ASYNC110 - two turns
        await asyncio.sleep(0)
    gaps.end()
    assert gaps._gaps[0].late_s >= gaps._gaps[0].own_s >= 0.005
