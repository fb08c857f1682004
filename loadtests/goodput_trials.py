"""Plays one run at a given rate, for the goodput search; returns the share answered in time.

Each run has another seed, so that repeats differ. Between runs the server gets time to become idle:
all requests have ended, but after a run in which callers gave up, the server may still work for
them for as long as their timeout. A run in which the generator fell behind is repeated once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

from loadtests.results.record import Record
from loadtests.run import PreparedRun
from loadtests.traffic.scaled import rate_of, scaled


class GeneratorBehind(RuntimeError):
    """This machine cannot send at the rate, so the measurement does not tell about the server."""


@dataclass(slots=True)
class ScenarioTrials:
    """`measure` for `goodput.search`. `told`: hears of each run's rate and record."""

    ready: PreparedRun
    pause_s: float = 2.0
    told: Callable[[float, Record], None] = lambda rate, record: None
    sleep: Callable[[float], None] = time.sleep
    _own_rate: float = field(init=False)
    _numbers: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        """Raises ScenarioErrors and TraceError."""
        self._own_rate = rate_of(self.ready.scenario, self.ready.options.scenario.parent)

    def measure(self, rate: float) -> float:
        """Raises GeneratorBehind, TraceError and WorkerLost."""
        record = self._played(rate)
        if record.client.behind:
            record = self._played(rate)
        if record.client.behind:
            raise GeneratorBehind(f"at {rate:.4g}/s {record.client.behind}")
        total = record.total()
        self.told(rate, record)
        return total.in_slo / total.offered if total.offered else 0.0

    def _played(self, rate: float) -> Record:
        scenario = scaled(self.ready.scenario, rate / self._own_rate)
        scenario = scenario.model_copy(update={"seed": scenario.seed + next(self._numbers)})
        record = replace(self.ready, scenario=scenario).play()
        gave_up = "timeout" in record.total().reasons
        self.sleep(self.pause_s + (self.ready.options.timeout_s if gave_up else 0.0))
        return record
