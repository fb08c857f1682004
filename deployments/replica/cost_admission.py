"""May a new version's replica serve, by what its batches cost beside the live version's?

The replica has measured its costs and serves nobody yet. Where the live version is much faster, the
replica measures again before it refuses to start: what else runs on the machine disturbs a
measurement, and the least time of several is the device's own. One replica of a host measures
again at a time. Where there is nothing to compare with, or the registry does not answer, the
replica is let in. The rule is `contract/rollout/cost_gate.py`. Seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from deployments.contract.rollout.costs import CostBounds, LiveCosts
from deployments.process.cost_gate import late_rows, refusal
from runtimes import staging
from runtimes.errors import LoadError
from runtimes.profiling import Profile, measure
from runtimes.types import Runtime, RuntimeSettings

MEASURES = 3  # times in all
PAUSE_S = 1.0  # before each further one: most disturbances are over by then
_MAX_S = 5.0  # of each further one
logger = logging.getLogger("headrace.replica")


class TooCostly(LoadError):
    """Batches take too long; the message says of which length, how long, and the bound."""


async def admit(
    points: Profile,
    bounds: CostBounds,
    live_costs: Callable[[], Awaitable[LiveCosts | None]],
    measure_again: Callable[[], Awaitable[Profile]],
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Profile:
    """The costs, each the least that was measured. `live_costs` is asked anew each time, because
    what disturbs the replica slows the live version too. Raises `TooCostly`."""
    for number in range(1, MEASURES + 1):
        live = await live_costs()
        why = "" if live is None else refusal(live, points, bounds)
        if not why:
            return points
        if number < MEASURES:
            await pause(PAUSE_S)
            points = least(points, await measure_again())
    raise TooCostly(f"{why} (measured {MEASURES} times; accept.max_cost_ratio)")


def least(before: Profile, again: Profile) -> Profile:
    """The points of `before`, with the least time that either has."""
    known = {(rows, length): seconds for rows, length, seconds in again}
    return tuple((r, n, min(s, known.get((r, n), s))) for r, n, s in before)


def measured_again(
    settings: RuntimeSettings, runtime: Runtime, seconds: float, cache_dir: Path
) -> Profile:
    """Measure once more, while no other replica of this host does, unless the folder cannot be
    written. Blocks."""
    with contextlib.ExitStack() as alone:
        with contextlib.suppress(OSError):
            cache_dir.mkdir(parents=True, exist_ok=True)
            alone.enter_context(staging.exclusive(cache_dir / "costs"))
        return measure(settings, runtime.limits(), runtime.run, min(seconds, _MAX_S))


def warn_of_late_rows(model: str, points: Profile, slo_s: float) -> None:
    """For a version that nothing is compared with: what it takes longer for than it promises."""
    if late := late_rows(points, slo_s):
        logger.warning("%s: such rows are answered late", late, extra={"model": model})
