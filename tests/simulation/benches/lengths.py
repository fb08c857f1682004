"""Which lengths arrive, and which edges would pad them least?

Three kinds of traffic by name, and the exact padding-optimal edges of a sample over all of its
distinct lengths, without any lattice: what edges found online are compared with. "Cut" means that
longer rows are drawn again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from loadtests.traffic.workload import ragged_lengths

FRESH_ROWS = 100_000  # of a sample that something is judged by

Draw = Callable[[random.Random], int]


@dataclass(frozen=True, slots=True)
class Lengths:
    """`longest`: no row is longer; `slo_s`: what its callers expect of the device below."""

    name: str
    draw: Draw
    longest: int
    slo_s: float

    def sample(self, count: int, seed: int) -> list[int]:
        rng = random.Random(seed)
        return [self.draw(rng) for _ in range(count)]


def cut(draw: Draw, longest: int) -> Draw:
    def drawn(rng: random.Random) -> int:
        while (length := draw(rng)) > longest:
            pass
        return length

    return drawn


def log_normal(rng: random.Random) -> int:
    return ceil(rng.lognormvariate(6.63, 0.99))


def exponential(rng: random.Random) -> int:
    return ceil(rng.expovariate(1 / 2048))


def mix(rng: random.Random) -> int:
    return ragged_lengths(1, rng)[0]


MIX = Lengths("70/25/5 mix", mix, 512, 0.1)
LOG_NORMAL = Lengths("log-normal(6.63, 0.99) cut at 4,096", cut(log_normal, 4096), 4096, 1.0)
EXPONENTIAL = Lengths("exponential(2,048) cut at 8,192", cut(exponential, 8192), 8192, 1.0)


def padding(lengths: Sequence[int], edges: Sequence[int]) -> float:
    """Padded over real tokens, less 1, when every row is padded to its bucket's edge."""
    taken = np.searchsorted(edges, lengths)
    return float(np.asarray(edges)[taken].sum() / np.sum(lengths)) - 1.0


def exact_edges(lengths: Sequence[int], count: int) -> tuple[int, ...]:
    """The edges that pad these rows least: dynamic programming over all distinct lengths."""
    points, rows = np.unique(lengths, return_counts=True)
    below = np.concatenate(([0], np.cumsum(rows)))
    least = np.full(len(points) + 1, np.inf)
    least[0] = 0.0
    begins = []
    for _ in range(count):
        least, begin = _one_more(points, below, least)
        begins.append(begin)
    edges, end = [], len(points)
    for begin in reversed(begins):
        edges.append(int(points[end - 1]))
        end = begin[end]
    return tuple(reversed(edges))


def _one_more(
    points: np.ndarray, below: np.ndarray, least: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Least cost up to each point with one bucket more than `least` has, and where that begins."""
    then, begin = np.full_like(least, np.inf), np.zeros(len(least), dtype=int)
    for j in range(1, len(least)):
        costs = least[:j] + points[j - 1] * (below[j] - below[:j])
        begin[j] = costs.argmin()
        then[j] = costs[begin[j]]
    return then, begin
