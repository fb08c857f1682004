"""What is a device asked to do? Batches with their answers, and questions for its health.

A job is written by one thread at a time: the event loop until it is put in line, the device's
thread while it runs, the loop again from its `done` on. Times are `time.perf_counter` seconds of
this process.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from deployments.contract.batch_wire import Column, RowError
from routers.staging import Staged
from runtimes.types import Batch, StageTimes

Key = tuple[str, int]


@dataclass(slots=True)
class Job:
    """`done` is a future of the loop that put it in line. `budget_s`: how long after its arrival
    anybody waits. `returned`: it was not started and will not be. `opened`, for whoever asked:
    resolves to True when it starts, to False when it never will. `fault`: what the runtime raised
    when that was not the fault of single rows."""

    staged: Staged
    batch: Batch
    done: asyncio.Future[Job]
    arrived: float
    budget_s: float = float("inf")
    opened: asyncio.Future[bool] | None = None
    returned: bool = False
    started: float = 0.0
    finished: float = 0.0
    outputs: dict[str, Column] = field(default_factory=dict)
    errors: tuple[RowError, ...] = ()
    times: StageTimes = field(default_factory=StageTimes)
    padded_tokens: int = 0
    fault: Exception | None = None

    @property
    def key(self) -> Key:
        return self.staged.gateway, self.staged.lease_id

    @property
    def wait_s(self) -> float:
        """From arrival to the device; 0 for one that was returned."""
        return 0.0 if self.returned else self.started - self.arrived

    @property
    def service_s(self) -> float:
        return self.finished - self.started


@dataclass(slots=True)
class Probe:
    """A question for the runtime's health; `done` resolves to its fault, None when it is well."""

    done: asyncio.Future[Exception | None]
