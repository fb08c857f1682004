"""Measured times of an engine's steps on this device, before the first caller asks.

Runs prompts of one length with more and more of them at once, and counts steps and seconds: so a
step's time is known by how many sequences it serves. Then prompts of growing length, alone: so it
is known by how many tokens it reads. Each is run twice and the lesser time kept, which is the
engine's without what disturbed it. For warm stream runtimes; asks as any caller would.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import aclosing
from time import perf_counter

from runtimes.errors import LoadError
from runtimes.types import StreamLimits, StreamRequest, StreamRuntime

Profile = tuple[tuple[int, int, float], ...]

_OUTPUT = 16
_PROMPT = 8
_RUNS = 2
_numbers = itertools.count()


async def measure(
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
