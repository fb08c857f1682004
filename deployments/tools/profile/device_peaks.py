"""How much of its GPU does a model take, batch by batch?

Before warm-up the largest batch of each length runs once, the shortest length first, while NVML is
asked again and again by a thread of its own. Backends keep what they have taken for later batches,
so a figure is what the process holds once it has served lengths up to this one. That is also why
nothing is measured after warm-up, which begins with the largest batch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

from deployments.replica.device_memory import gpus_of, read
from runtimes import warmup
from runtimes.errors import MissingBackend
from runtimes.nvml import GpuMemory
from runtimes.types import DeviceMemory, Limits, Runtime, RuntimeSettings

_EVERY_S = 0.005


@dataclass(frozen=True, slots=True)
class BatchMemory:
    """`memory`: None where the device had too little for the batch."""

    rows: int
    length: int
    memory: DeviceMemory | None


def peaks(runtime: Runtime, settings: RuntimeSettings, num_gpus: float) -> tuple[BatchMemory, ...]:
    """Nothing without a GPU, or where the driver tells nothing. Raises LoadError for a batch that
    fails otherwise than by lack of memory, and for one row that has too little."""
    limits = runtime.limits()
    if limits.sample is None and not limits.takes_zeros:
        return ()
    gpus = gpus_of(limits.device, num_gpus)
    if gpus is None:
        return ()
    try:
        return tuple(_each(runtime, settings, limits, gpus))
    except MissingBackend:
        return ()
    finally:
        gpus.close()


def _each(
    runtime: Runtime, settings: RuntimeSettings, limits: Limits, gpus: GpuMemory
) -> Iterator[BatchMemory]:
    most: dict[int, int] = {}
    for rows, length in warmup.shapes(settings, limits):
        most[length] = max(rows, most.get(length, 0))
    for length, rows in sorted(most.items()):
        watch = _Watch(gpus)
        try:
            fits = warmup.attempt(runtime.run, warmup.batch(limits, rows, length), length)
        finally:
            found = watch.end()
        yield BatchMemory(rows, length, found if fits else None)


class _Watch:
    """Reads until it is ended, at least once after whatever ran meanwhile."""

    def __init__(self, gpus: GpuMemory) -> None:
        self._gpus = gpus
        self._over = threading.Event()
        self._seen: list[DeviceMemory] = []
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self) -> DeviceMemory:
        """The most. Raises MissingBackend where the driver tells nothing any more."""
        self._over.set()
        self._thread.join()
        return max([*self._seen, read(self._gpus)], key=lambda each: (each.own or 0, each.used))

    def _look(self) -> None:
        while not self._over.wait(_EVERY_S):
            try:
                self._seen.append(read(self._gpus))
            except MissingBackend:
                return
