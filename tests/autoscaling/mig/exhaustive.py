"""Fifty small cases, and the fewest GPUs for each by trying everything.

The search takes nothing from `autoscaling.mig`: placements are written down again from `nvidia-smi
mig -lgipp`, sizes from its lists. Every replica is tried on every GPU, in every slice that holds
it, at every start. `python -m tests.autoscaling.mig.exhaustive` prints the table of docs/mig.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from autoscaling.mig.geometry import GPUS
from autoscaling.mig.packing import Packing, SliceDemand, pack

# (compute slices, memory slices, starts), smallest first
SHAPES = (
    (1, 1, (0, 1, 2, 3, 4, 5, 6)),
    (1, 2, (0, 2, 4, 6)),
    (2, 2, (0, 2, 4)),
    (3, 4, (0, 4)),
    (4, 4, (0,)),
    (7, 8, (0,)),
)
USABLE_MIB = {
    "a100-40": (4_864, 9_856, 9_856, 19_968, 19_968, 40_192),
    "a100-80": (9_728, 19_968, 19_968, 40_192, 40_192, 80_384),
    "h100-80": (9_984, 20_090, 20_090, 40_448, 40_448, 81_152),
    "h200-141": (16_384, 33_280, 33_280, 71_168, 71_168, 143_360),
}
# Other GPUs, which the fifty cases leave out: H100 NVL, the H100 of a GH200, A30.
OTHER_MIB = {
    "h100-94": (10_874, 22_016, 22_016, 47_226, 47_226, 94_842),
    "gh200-96": (11_264, 23_552, 23_552, 47_616, 47_616, 95_232),
    "a30": (5_949, 11_970, 24_002),
}
A30_SHAPES = ((1, 1, (0, 1, 2, 3)), (2, 2, (0, 2)), (4, 4, (0,)))
CASES = 50
MAX_REPLICAS = 16

Shape = tuple[int, int, tuple[int, ...]]
Gpu = tuple[int, int]  # which memory slices are taken, as bits; how many compute slices


@dataclass(frozen=True)
class Case:
    """models: (replicas, MiB each)."""

    gpu: str
    models: tuple[tuple[int, int], ...]

    @property
    def replicas(self) -> int:
        return sum(replicas for replicas, _ in self.models)


def cases(seed: int = 18) -> list[Case]:
    rng = random.Random(seed)
    return [_case(rng, rng.choice(sorted(USABLE_MIB)), USABLE_MIB) for _ in range(CASES)]


def a30_cases(seed: int = 30) -> list[Case]:
    rng = random.Random(seed)
    return [_case(rng, "a30", OTHER_MIB) for _ in range(CASES)]


def _case(rng: random.Random, gpu: str, usable: Mapping[str, tuple[int, ...]]) -> Case:
    left = MAX_REPLICAS
    models = []
    for _ in range(rng.randint(1, 5)):
        if left:
            replicas = rng.randint(1, min(left, 5))
            # Of all sizes alike, the largest seldom: it has a GPU of its own in any case.
            slice_mib = rng.choice(usable[gpu][:-1] * 4 + usable[gpu][-1:])
            models.append((replicas, round(slice_mib * rng.uniform(0.3, 1.0))))
            left -= replicas
    return Case(gpu, tuple(models))


def fewest(case: Case) -> int:
    """Of all ways to place the replicas, the least number of GPUs."""
    wanted = sorted((need for replicas, need in case.models for _ in range(replicas)), reverse=True)
    mib = (USABLE_MIB | OTHER_MIB)[case.gpu]
    shapes, compute = (A30_SHAPES, 4) if case.gpu == "a30" else (SHAPES, 7)
    search = _Everything(tuple(wanted), tuple(zip(shapes, mib, strict=True)), compute)
    return next(gpus for gpus in count(1) if search.holds(((0, 0),) * gpus, 0))


class _Everything:
    """Tries every way until one holds all replicas. States that were met before led nowhere."""

    def __init__(
        self, wanted: tuple[int, ...], profiles: tuple[tuple[Shape, int], ...], compute: int
    ) -> None:
        self._wanted, self._profiles, self._compute = wanted, profiles, compute
        self._met: set[tuple[tuple[Gpu, ...], int]] = set()

    def holds(self, gpus: tuple[Gpu, ...], done: int) -> bool:
        if done == len(self._wanted):
            return True
        if (gpus, done) in self._met:
            return False
        self._met.add((gpus, done))
        ways = dict.fromkeys(self._with(gpus, self._wanted[done]))
        return any(self.holds(after, done + 1) for after in ways)

    def _with(self, gpus: tuple[Gpu, ...], need: int) -> Iterator[tuple[Gpu, ...]]:
        for n, (taken, compute) in enumerate(gpus):
            others = (*gpus[:n], *gpus[n + 1 :])
            for (slices, size, starts), mib in self._profiles:
                fits = mib >= need and compute + slices <= self._compute
                for start in starts if fits else ():
                    bits = ((1 << size) - 1) << start
                    if not bits & taken:
                        yield tuple(sorted((*others, (taken | bits, compute + slices))))


def planned(case: Case) -> Packing:
    demands = [SliceDemand(f"m{n}", *model) for n, model in enumerate(case.models)]
    return pack(GPUS[case.gpu], demands)


def table() -> str:
    rows = ["| case | GPU | replicas × MiB | exhaustive | planned |", "|--:|---|---|--:|--:|"]
    for number, case in enumerate(cases(), 1):
        models = ", ".join(f"{replicas} × {need:,}" for replicas, need in case.models)
        counts = f"{fewest(case)} | {len(planned(case).gpus)}"
        rows.append(f"| {number} | {case.gpu} | {models} | {counts} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
