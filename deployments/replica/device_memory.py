"""The memory of a replica's device: how large may a batch be, and how much memory is taken?

A batch for which memory was too small has its tokens, padding included, halved: so large may
batches be from then on, and larger ones are cut before they run. The cap is doubled after each
`RECOVERS_S` without such a fault, up to where it is none any more, because what took the memory may
be gone: another process, another model of this one, blocks of other sizes. A try that fails costs
one run of the batch, at most once a minute. One row cannot be cut, so its fault lowers no cap.

How much is taken NVML says (`runtimes.nvml`), in a thread: a driver that hangs keeps no loop. What
the processes take that a replica started, as an engine is, counts as the replica's own.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

import psutil

from runtimes import nvml
from runtimes.errors import MissingBackend, OutOfMemory
from runtimes.nvml import GpuMemory
from runtimes.types import Batch, DeviceMemory

RECOVERS_S = 60.0
LOOKS_S = 5.0  # finding the processes takes milliseconds
logger = logging.getLogger("headrace.replica")


class MemoryCap:
    """`tokens`: of a batch, padding included; None: any number. Times are seconds on one clock."""

    def __init__(self, model: str = "") -> None:
        self.tokens: int | None = None
        self._model = model
        self._failed = 0  # the largest batch that did not fit since there was no cap
        self._since = 0.0

    def holds(self, tokens: int, now: float) -> bool:
        """Whether a batch of so many tokens may run whole."""
        while self.tokens is not None and now - self._since >= RECOVERS_S:
            self._since += RECOVERS_S
            self.tokens *= 2
            if self.tokens > self._failed:
                self.tokens, self._failed = None, 0
                logger.info("batches may be of any size again", extra={"model": self._model})
        return self.tokens is None or tokens <= self.tokens

    def exceeded(self, batch: Batch, tokens: int, fault: OutOfMemory, now: float) -> None:
        """Memory was too small for this batch."""
        if batch.rows == 1:
            return
        self._failed = max(self._failed, tokens)
        self.tokens, self._since = max(1, tokens // 2), now
        logger.warning(
            "the device has no memory for %d rows of up to %d tokens; batches are cut to %d tokens "
            "for %g s: %s",
            batch.rows, int(batch.lengths.max()), self.tokens, RECOVERS_S, fault,
            extra={"model": self._model},
        )  # fmt: skip


def tokens_of(batch: Batch, pads: bool) -> int:
    """What the device computes: rows x longest where it pads, else the sum of lengths."""
    return batch.rows * int(batch.lengths.max()) if pads else int(batch.lengths.sum())


def gpus_of(device: str, num_gpus: float) -> GpuMemory | None:
    """Those that a model runs on. `device`: as its `Limits` name it; `num_gpus`: that Ray reserved,
    for what does not say where it runs. None where there are none, or nobody can tell."""
    kind, _, index = device.partition(":")
    if kind != "cuda" and not num_gpus:
        return None
    visible, order = os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER", "")
    return nvml.opened(visible, order, int(index) if index else None)


def read(gpus: GpuMemory) -> DeviceMemory:
    """Raises `MissingBackend` where the driver does not answer any more."""
    this = psutil.Process()
    return gpus.read({this.pid, *(child.pid for child in this.children(recursive=True))})


def growth(before: DeviceMemory, now: DeviceMemory) -> int:
    """Bytes that the process takes more; that everybody does, where its own are not told."""
    if now.own is None:
        return now.used - before.used
    return now.own - (before.own or 0)  # a process that has taken nothing yet is not listed


def others_bytes(memory: DeviceMemory) -> int:
    """What other processes and the driver take; 0 where that cannot be told from its own."""
    return 0 if memory.own is None else max(0, memory.used - memory.own)


async def watch_device_memory(
    open_gpus: Callable[[], GpuMemory | None],
    tell: Callable[[DeviceMemory | None], None],
    model: str = "",
) -> None:
    """Tell what is taken, again and again until cancelled; nothing where there is no GPU. A driver
    that goes is told once, as None."""
    gpus = await asyncio.to_thread(open_gpus)
    while gpus is not None:
        try:
            tell(await asyncio.to_thread(read, gpus))
        except MissingBackend as gone:
            logger.warning("the device's memory is not shown: %s", gone, extra={"model": model})
            tell(None)
            return
        await asyncio.sleep(LOOKS_S)
