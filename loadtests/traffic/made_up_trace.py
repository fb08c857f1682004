"""A small recording that nobody recorded, to try replay on without anybody's data.

`python -m loadtests.traffic.made_up_trace > FILE`: two minutes of a chat service in our own format,
`seconds,length,output`: a rate that swells and ebbs, clumps as of people who answer each other,
log-normal prompts, exponential answers. The same every time.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from math import pi, sin

from loadtests.traffic.workload import intervals, renewal_times

SECONDS, EVERY_S = 120, 1.0
MEAN_RATE, SWELL, CV = 20.0, 0.6, 1.6
LONGEST = 2048


def rows(seed: int = 1) -> Iterator[tuple[float, int, int]]:
    """(seconds, prompt's tokens, answer's tokens)."""
    rng = random.Random(seed)
    rates = [
        (at * EVERY_S, MEAN_RATE * (1.0 + SWELL * sin(2.0 * pi * at / SECONDS)))
        for at in range(int(SECONDS / EVERY_S))
    ]
    for at_s in renewal_times(rates, SECONDS, intervals("gamma", CV, rng)):
        length = min(LONGEST, max(1, round(rng.lognormvariate(4.2, 1.1))))
        yield round(at_s, 3), length, max(1, round(rng.expovariate(1 / 120)))


def main() -> int:
    print("seconds,length,output")
    for row in rows():
        print(*row, sep=",")
    return 0


if __name__ == "__main__":
    sys.exit(main())
