"""Which MIG slices fit on one GPU together, and how much memory does each have?

Exact, by the placements that the driver allows. A GPU of this family has 8 memory slices and 7
compute slices. An instance covers a run of memory slices that may begin at certain places only, so
two sums are not enough: 3g beside 3g leaves one compute slice that nothing can use. Every kind may
stand wherever a larger kind may, so the smallest kind that holds a replica is never worse than
another. An A30 has 4 of each: its profiles fit together as three of these kinds do (`_A30_KINDS`).
Source: `nvidia-smi mig -lgipp`, the same on A100 and H100; NVIDIA's MIG user guide, "Supported MIG
Profiles". Not modelled: media extensions (`+me`), the driver before R510.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, product

MEMORY_SLICES = 8
COMPUTE_SLICES = 7

Counts = tuple[int, ...]
"""Instances of each kind, in the order of `KINDS`."""


@dataclass(frozen=True, slots=True)
class InstanceKind:
    """compute: its compute slices. size: its memory slices, from one of `starts` on."""

    name: str
    compute: int
    size: int
    starts: tuple[int, ...]

    @property
    def cost(self) -> float:
        """Share of a GPU that it takes, 0 to 1: of what it takes more of."""
        return max(self.compute / COMPUTE_SLICES, self.size / MEMORY_SLICES)


KINDS = (
    InstanceKind("1g", 1, 1, (0, 1, 2, 3, 4, 5, 6)),
    InstanceKind("1g double", 1, 2, (0, 2, 4, 6)),
    InstanceKind("2g", 2, 2, (0, 2, 4)),
    InstanceKind("3g", 3, 4, (4, 0)),  # the upper half first: the lower one holds more beside it
    InstanceKind("4g", 4, 4, (0,)),
    InstanceKind("7g", 7, 8, (0,)),
)
NONE: Counts = (0,) * len(KINDS)


@dataclass(frozen=True, slots=True)
class InstancePlacement:
    """An instance of the kind at this position of `KINDS`, from memory slice `start` on."""

    kind: int
    start: int

    @property
    def covers(self) -> range:
        return range(self.start, self.start + KINDS[self.kind].size)


def fits(counts: Counts) -> bool:
    """Whether one GPU can hold these instances at once."""
    return placed(counts) is not None


@cache
def placed(counts: Counts) -> tuple[InstancePlacement, ...] | None:
    """Where each of them stands, largest first; None where one GPU cannot hold them."""
    if any(n < 0 for n in counts) or _compute(counts) > COMPUTE_SLICES:
        return None
    wanted = [kind for kind in reversed(range(len(KINDS))) for _ in range(counts[kind])]
    if sum(KINDS[kind].size for kind in wanted) > MEMORY_SLICES:
        return None
    return _place(wanted, frozenset(range(MEMORY_SLICES)))


def _place(wanted: Sequence[int], free: frozenset[int]) -> tuple[InstancePlacement, ...] | None:
    if not wanted:
        return ()
    for start in KINDS[wanted[0]].starts:
        first = InstancePlacement(wanted[0], start)
        if free.issuperset(first.covers):
            rest = _place(wanted[1:], free.difference(first.covers))
            if rest is not None:
                return (first, *rest)
    return None


@cache
def feasible() -> tuple[Counts, ...]:
    """All that one GPU can hold, without the empty one, in ascending order."""
    most = [range(len(kind.starts) + 1) for kind in KINDS]
    return tuple(counts for counts in product(*most) if any(counts) and fits(counts))


@cache
def maximal() -> tuple[Counts, ...]:
    """Those that leave no room for a further instance of any kind."""
    return tuple(counts for counts in feasible() if not any(_grown(counts)))


def _grown(counts: Counts) -> Iterator[bool]:
    return (fits(with_one(counts, kind)) for kind in range(len(KINDS)))


def with_one(counts: Counts, kind: int, more: int = 1) -> Counts:
    return (*counts[:kind], counts[kind] + more, *counts[kind + 1 :])


def plus(counts: Counts, others: Counts) -> Counts:
    return tuple(a + b for a, b in zip(counts, others, strict=True))


def left_over(counts: Counts, of: Collection[int] = range(len(KINDS))) -> tuple[Counts, ...]:
    """What of these kinds still fits beside them: each largest choice, those of the largest kinds
    first."""
    wanted = (each for each in feasible() if not any(n for k, n in enumerate(each) if k not in of))
    fitting = [each for each in wanted if fits(plus(counts, each))]
    largest = [each for each in fitting if not any(_within(each, other) for other in fitting)]
    return tuple(sorted(largest, key=lambda each: each[::-1], reverse=True))


def _within(counts: Counts, other: Counts) -> bool:
    return counts != other and all(a <= b for a, b in zip(counts, other, strict=True))


def _compute(counts: Counts) -> int:
    return sum(n * kind.compute for n, kind in zip(counts, KINDS, strict=True))


def free_compute(counts: Counts) -> int:
    return COMPUTE_SLICES - _compute(counts)


def free_memory(counts: Counts) -> int:
    """Memory slices that no instance covers."""
    return MEMORY_SLICES - sum(n * kind.size for n, kind in zip(counts, KINDS, strict=True))


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of slice on one GPU. usable_mib: what a process finds, context included; None: not
    known. sms: streaming multiprocessors, None: not known."""

    name: str
    kind: int
    usable_mib: int | None
    sms: int | None

    @property
    def shape(self) -> InstanceKind:
        return KINDS[self.kind]

    @property
    def compute(self) -> int:
        """Compute slices of the GPU that it takes: 3 of 3g.40gb."""
        return int(self.name.partition("g")[0])

    @property
    def resource(self) -> str:
        """What the device plugin (`mig.strategy: mixed`) calls it, without the vendor."""
        return "mig-" + self.name.replace("+", ".")

    @property
    def ray_resource(self) -> str:
        """The custom resource that a model asks for: `mig_1g_18gb`."""
        return "mig_" + self.name.replace(".", "_").replace("+", "_")


@dataclass(frozen=True, slots=True)
class Gpu:
    """profiles: at most one of each kind, in the order of `KINDS`."""

    name: str
    profiles: tuple[Profile, ...]
    memory_slices: int = MEMORY_SLICES
    compute_slices: int = COMPUTE_SLICES

    def of_kind(self, kind: int) -> Profile:
        return next(each for each in self.profiles if each.kind == kind)

    def slices(self, placement: InstancePlacement) -> range:
        """The memory slices that the instance covers, as this GPU counts them."""
        covers, share = placement.covers, MEMORY_SLICES // self.memory_slices
        return range(covers.start // share, covers.stop // share)

    @property
    def usable_mib(self) -> int | None:
        """Of the whole GPU while it is partitioned: its largest profile."""
        return self.profiles[-1].usable_mib

    def named(self, name: str) -> Profile | None:
        return next((each for each in self.profiles if each.name == name), None)

    def smallest(self, need_mib: int) -> Profile | None:
        """The cheapest slice that holds so much; None: none of known size does."""
        known = (each for each in self.profiles if each.usable_mib is not None)
        return next((each for each in known if (each.usable_mib or 0) >= need_mib), None)

    def largest(self) -> Profile:
        """The one with most memory, of those whose size is known."""
        return max(self.profiles, key=lambda each: each.usable_mib or 0)

    def unknown(self) -> tuple[Profile, ...]:
        return tuple(each for each in self.profiles if each.usable_mib is None)


def with_usable(gpu: Gpu, usable_mib: Mapping[str, int]) -> Gpu:
    """The GPU with what a node says of these profiles. Raises ValueError for one it has not, and
    for sizes that shrink from a kind to a larger one."""
    for name in usable_mib:
        if gpu.named(name) is None:
            have = ", ".join(each.name for each in gpu.profiles)
            raise ValueError(f"{gpu.name} has no profile {name}; must be one of {have}")
    told = tuple(replace(p, usable_mib=usable_mib.get(p.name, p.usable_mib)) for p in gpu.profiles)
    known = [each for each in told if each.usable_mib is not None]
    for small, large in pairwise(known):
        if (small.usable_mib or 0) > (large.usable_mib or 0):
            raise ValueError(
                f"{small.name} would have more memory ({small.usable_mib} MiB) than {large.name} "
                f"({large.usable_mib} MiB); must be at most that"
            )
    return replace(gpu, profiles=told)


_Row = tuple[str, int | None, int | None]


def _gpu(name: str, rows: Iterable[_Row]) -> Gpu:
    return Gpu(name, tuple(Profile(row[0], n, row[1], row[2]) for n, row in enumerate(rows)))


# Four 1g, two 2g or one 4g, a 2g beside two 1g: an A30 holds what a GPU of 8 memory slices holds of
# 1g with double memory, 3g and 7g. `tests/autoscaling/mig/exhaustive.py` has its own placements.
_A30_KINDS = (1, 3, 5)


def _a30(*rows: _Row) -> Gpu:
    pairs = zip(_A30_KINDS, rows, strict=True)
    return Gpu("a30", tuple(Profile(row[0], kind, row[1], row[2]) for kind, row in pairs), 4, 4)


def _named(*sizes_gb: int) -> Iterator[tuple[str, None, None]]:
    """Profiles of which nobody has published more than the names, which have these sizes."""
    for kind, size in zip((1, 1, 2, 3, 4, 7), sizes_gb, strict=True):
        yield f"{kind}g.{size}gb", None, None


# The usable memory of each slice: the least that a driver was seen to print (`nvidia-smi mig
# -lgip`) or a process to find; a profile's name is not its size. A slice without a published
# figure has none, and is not used in plans until the user gives one. What a node reports takes
# precedence; see `with_usable`. A profile of equal memory slices stands in for
# 4g.20gb, 1g.35gb and 4g.71gb.
GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _a30(("1g.6gb", 5_949, 14), ("2g.12gb", 11_970, 28), ("4g.24gb", 24_002, 56)),
        _gpu("a100-40", [
            ("1g.5gb", 4_864, 14), ("1g.10gb", 9_856, 14), ("2g.10gb", 9_856, 28),
            ("3g.20gb", 19_968, 42), ("4g.20gb", 19_968, 56), ("7g.40gb", 40_192, 98),
        ]),
        _gpu("a100-80", [
            ("1g.10gb", 9_728, 14), ("1g.20gb", 19_968, 14), ("2g.20gb", 19_968, 28),
            ("3g.40gb", 40_192, 42), ("4g.40gb", 40_192, 56), ("7g.80gb", 80_384, 98),
        ]),
        _gpu("h100-80", [
            ("1g.10gb", 9_984, 16), ("1g.20gb", 20_090, 26), ("2g.20gb", 20_090, 32),
            ("3g.40gb", 40_448, 60), ("4g.40gb", 40_448, 64), ("7g.80gb", 81_152, 132),
        ]),
        _gpu("h100-94", [
            ("1g.12gb", 10_874, 16), ("1g.24gb", 22_016, 26), ("2g.24gb", 22_016, 32),
            ("3g.47gb", 47_226, 60), ("4g.47gb", 47_226, 64), ("7g.94gb", 94_842, 132),
        ]),
        _gpu("gh200-96", [
            ("1g.12gb", 11_264, 16), ("1g.24gb", 23_552, 26), ("2g.24gb", 23_552, 32),
            ("3g.48gb", 47_616, 60), ("4g.48gb", 47_616, 64), ("7g.96gb", 95_232, 132),
        ]),
        _gpu("h200-141", [
            ("1g.18gb", 16_384, 16), ("1g.35gb", 33_280, 26), ("2g.35gb", 33_280, 32),
            ("3g.71gb", 71_168, 60), ("4g.71gb", 71_168, 64), ("7g.141gb", 143_360, 132),
        ]),
        _gpu("b200-180", [
            ("1g.23gb", 20_992, None), ("1g.45gb", None, None), ("2g.45gb", None, None),
            ("3g.90gb", None, None), ("4g.90gb", None, None), ("7g.180gb", None, None),
        ]),
        _gpu("gh200-144", _named(18, 36, 36, 72, 72, 144)),
        _gpu("gb200-186", _named(23, 47, 47, 93, 93, 186)),
        _gpu("b300-269", _named(34, 67, 67, 135, 135, 269)),
        _gpu("gb300-278", _named(35, 70, 70, 139, 139, 278)),
    )
}  # fmt: skip
