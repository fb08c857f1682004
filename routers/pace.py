"""How much a second, lately?

Two averages over continuous time that need no timer: `Pace` of amounts that come in lumps (seconds
of service at the end of a batch), `Level` of a value that holds between the moments it is told.
Both forget exponentially over `window_s` and cost O(1) a sample; what counts is when samples come,
never how many. A window should span several lumps: with five or more of them in a window the ripple
is at most a tenth of the average.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp


@dataclass(slots=True)
class Pace:
    """Amounts a second. Silence counts: it decays towards 0 while nothing is added."""

    window_s: float
    value: float = 0.0
    at: float = 0.0

    def add(self, amount: float, now: float) -> None:
        if now > self.at:
            self.value *= exp((self.at - now) / self.window_s)
            self.at = now
        self.value += amount / self.window_s

    def read(self, now: float) -> float:
        return self.value * exp((self.at - now) / self.window_s) if now > self.at else self.value


@dataclass(slots=True)
class Level:
    """Time average of what is told; the first value is believed at once."""

    window_s: float
    value: float = 0.0
    held: float = 0.0
    at: float | None = None

    def tell(self, held: float, now: float) -> float:
        """The average up to `now`; from here on the value is `held`."""
        if self.at is None:
            self.value = held
        elif now > self.at:
            self.value += (self.held - self.value) * (1.0 - exp((self.at - now) / self.window_s))
        self.held, self.at = held, now
        return self.value
