"""The memory of a replica's device: how large may a batch be, and how much memory is taken?

A batch for which memory was too small has its tokens, padding included, halved: so large may
batches be from then on, and larger ones are cut before they run. The cap is doubled after each
`RECOVERS_S` without such a fault, up to where it is none any more, because what took the memory may
be gone: another process, another model of this one, blocks of other sizes. A try that fails costs
one run of the batch, at most once a minute. One row cannot be cut, so its fault lowers no cap.
"""

from __future__ import annotations

import logging

from runtimes.errors import OutOfMemory
from runtimes.types import Batch

RECOVERS_S = 60.0
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
