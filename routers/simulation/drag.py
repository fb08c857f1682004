"""By how much does a simulated device's time for a batch differ from what it should be?

A factor drawn anew for each batch: log-normal noise of median 1, a hiccup now and then, times when
the device is slow, and a slow start. Everything random comes from the generator given, one a
device, so that what one device does moves nothing of another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random


@dataclass(frozen=True, slots=True)
class Slow:
    """From one time to another everything takes `factor` times as long."""

    factor: float
    from_s: float = 0.0
    to_s: float = inf


@dataclass(frozen=True, slots=True)
class Ramp:
    """At first everything takes `factor` times as long; that falls to once, evenly, over `last_s`
    from `from_s` on."""

    factor: float
    from_s: float
    last_s: float

    def at(self, now: float) -> float:
        left = 1.0 - (now - self.from_s) / self.last_s
        return 1.0 + (self.factor - 1.0) * max(0.0, min(1.0, left))


@dataclass(frozen=True, slots=True)
class Drag:
    """See `Device.drag`. `noise`: sigma of the logarithm; `hiccups`: share of the batches that
    take `hiccup_factor` times as long."""

    rng: Random
    noise: float = 0.0
    hiccups: float = 0.0
    hiccup_factor: float = 1.0
    slow: Sequence[Slow] = ()
    ramp: Ramp | None = None

    def __call__(self, now: float) -> float:
        factor = self.rng.lognormvariate(0.0, self.noise) if self.noise else 1.0
        if self.hiccups and self.rng.random() < self.hiccups:
            factor *= self.hiccup_factor
        for each in self.slow:
            if each.from_s <= now < each.to_s:
                factor *= each.factor
        return factor if self.ramp is None else factor * self.ramp.at(now)
