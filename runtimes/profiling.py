"""Times batches of each size, and an engine's steps, on this device before the replica serves.

Batches: the shapes of warm-up, and one length between each two edges. One row of each length comes
first, then the largest batch of each, then the sizes between, so that the extremes are known if
time is short. A batch that would take longer than the time left is skipped, judged by a smaller
one: growing at most with the rows and with the square of the length.

Engines: prompts of one length with more and more of them at once, then prompts of growing length,
alone. So a step's time is known by how many sequences it serves and how many tokens it reads.

Each is run at least twice and the least time counts, the device's without what disturbed it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace
from time import perf_counter

from runtimes import warmup
from runtimes.errors import LoadError
from runtimes.types import (
    Batch,
    Limits,
    RuntimeSettings,
    StreamLimits,
    StreamRequest,
    StreamRuntime,
)

Profile = tuple[tuple[int, int, float], ...]

_MIN_RUNS = 2
_MAX_RUNS = 5
_ENOUGH_S = 0.01  # shorter batches are run more often: what disturbs them is longer than they are


def measure(
    settings: RuntimeSettings,
    limits: Limits,
    run: Callable[[Batch], object],
    seconds: float,
    clock: Callable[[], float] = perf_counter,
) -> Profile:
    """(rows, length, seconds) of each shape that was run; about `seconds` in all, none for 0.
    Raises `LoadError` where a batch fails: callers would meet the same. Shapes for which memory
    is too small are left out."""
    if limits.sample is None and not limits.takes_zeros:
        return ()
    end = clock() + seconds
    found: list[tuple[int, int, float]] = []
    for rows, length in in_order(settings, limits):
        left = end - clock()
        if left <= 0.0 or _MIN_RUNS * at_most(rows, length, found) > left:
            continue
        took_s = _least(run, warmup.batch(limits, rows, length), length, clock)
        if took_s is not None:
            found.append((rows, length, took_s))
    return tuple(found)


def in_order(settings: RuntimeSettings, limits: Limits) -> Iterator[tuple[int, int]]:
    """(rows, length) of what is measured: extremes first, then what lies between."""
    shapes = warmup.shapes(replace(settings, edges=_edges(settings, limits)), limits)
    most: dict[int, int] = {}
    for rows, length in shapes:
        most[length] = max(rows, most.get(length, 0))
    yield from ((1, length) for length in sorted(most))
    yield from ((most[length], length) for length in sorted(most) if most[length] > 1)
    between = [shape for shape in shapes if 1 < shape[0] < most[shape[1]]]
    yield from sorted(between, key=lambda shape: shape[0] * shape[1])


def _edges(settings: RuntimeSettings, limits: Limits) -> tuple[int, ...]:
    """A device that is compiled for certain lengths runs no other, nor do rows of known shapes."""
    if limits.row_shapes is not None:
        return limits.row_shapes.lengths
    if limits.fixed_edges or not settings.edges:
        return limits.fixed_edges
    below, last = (0, *settings.edges)[-2:]
    return (*settings.edges, max(1, (below + last) // 2))


def at_most(rows: int, length: int, found: Iterable[tuple[int, int, float]]) -> float:
    """Seconds that the batch takes at most, judged by those measured; 0 before there are any."""
    bounds = (
        took_s * max(1.0, rows / known_rows) * max(1.0, length / known_length) ** 2
        for known_rows, known_length, took_s in found
    )
    return min(bounds, default=0.0)


def _least(
    run: Callable[[Batch], object], tried: Batch, length: int, clock: Callable[[], float]
) -> float | None:
    least = spent = 0.0
    for done in range(_MAX_RUNS):
        if done >= _MIN_RUNS and spent >= _ENOUGH_S:
            break
        begin = clock()
        if not warmup.attempt(run, tried, length):
            return None
        took_s = clock() - begin
        spent += took_s
        least = min(least, took_s) if done else took_s
    return least


_OUTPUT = 16
_PROMPT = 8
_RUNS = 2
_numbers = itertools.count()


async def measure_stream(
    name: str, runtime: StreamRuntime, seconds: float, clock: Callable[[], float] = perf_counter
) -> Profile:
    """(running sequences, tokens of the step, seconds of it), as many as fit into about `seconds`;
    none for 0. `name`: the model's. Raises `LoadError` where the engine refuses."""
    end, last_s = clock() + seconds, 0.0
    found: dict[tuple[int, int], float] = {}
    for _, (count, prompt, output) in itertools.product(range(_RUNS), _shapes(runtime.limits())):
        began = clock()
        if seconds <= 0.0 or began + last_s > end:
            break
        steps = (await runtime.health()).steps
        await asyncio.gather(*(_one(name, runtime, prompt, output) for _ in range(count)))
        last_s = clock() - began
        steps = max((await runtime.health()).steps - steps, 1)
        key = (count, -(-prompt // steps) if output == 1 else count)  # a long prompt takes several
        found[key] = min(found.get(key, last_s), last_s / steps)
    return tuple((count, tokens, took) for (count, tokens), took in sorted(found.items()))


def _shapes(limits: StreamLimits) -> Iterator[tuple[int, int, int]]:
    """(requests at once, prompt tokens, output tokens), extremes first."""
    room = limits.context_tokens - _OUTPUT
    most = max(1, min(limits.max_sequences, limits.cache_tokens // (_PROMPT + 2 * _OUTPUT)))
    prompt, output = min(_PROMPT, room), _OUTPUT
    counts = sorted({1, most, *(2**k for k in range(1, most.bit_length()) if 2**k <= most)})
    longest = min(room, 2048)
    lengths = [n for n in (longest, longest // 4, longest // 16) if n > prompt]
    yield from ((n, prompt, output) for n in (counts[0], counts[-1]))
    yield from ((1, n, 1) for n in lengths)
    yield from ((n, prompt, output) for n in counts[1:-1])


async def _one(name: str, runtime: StreamRuntime, prompt: int, output: int) -> None:
    """Its tokens are its own, so that no cache has read them before."""
    number = next(_numbers)
    ids = [3 + (number * 31 + k * 7 + (number >> 3)) % 200 for k in range(prompt)]
    ids[0] = 3 + number % 250
    body = {
        "model": name, "prompt": ids, "max_tokens": output, "ignore_eos": True, "temperature": 0,
    }  # fmt: skip
    request = StreamRequest(f"profile-{number}", "completions", json.dumps(body).encode())
    async with aclosing(runtime.run(request)) as chunks:
        async for chunk in chunks:
            if chunk.status != 200:
                raise LoadError(f"the engine refused to be measured: {chunk.data.decode()}")
