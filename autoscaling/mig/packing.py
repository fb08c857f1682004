"""Which slice of which GPU does each replica get, on as few GPUs as possible, and which have none?

Each replica gets the cheapest slice that holds it (or the one that was asked for); a larger slice
would never save a GPU (`geometry`). `cover` finds the least number of GPUs, exactly while that is
cheap: best-fit decreasing gives a first solution; from a lower bound on, a depth-first search over
maximal layouts tries one GPU more at a time, and gives up after `STEPS`. If there are too few GPUs,
every demand gets its first replica before any gets a second, in the order given. `spreading`
decides which replica goes to which GPU.

To a scheduler equal slices are interchangeable. The plan proves that all replicas fit, not that a
pod will run on the GPU that is named here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from math import ceil

from autoscaling.mig.geometry import (
    COMPUTE_SLICES,
    KINDS,
    MEMORY_SLICES,
    NONE,
    Counts,
    Gpu,
    InstancePlacement,
    Profile,
    fits,
    free_compute,
    free_memory,
    left_over,
    maximal,
    placed,
    with_one,
)
from autoscaling.mig.spreading import spread

STEPS = 20_000
DEEPEST = 200  # GPUs; beyond it nothing is searched


@dataclass(frozen=True, slots=True)
class Cover:
    """gpus: the instances of each GPU. at_least: how many are needed in any case."""

    gpus: tuple[Counts, ...]
    at_least: int

    @property
    def proved(self) -> bool:
        return len(self.gpus) == self.at_least


@lru_cache(4096)
def cover(counts: Counts, steps: int = STEPS) -> Cover:
    """The fewest GPUs for these instances, best-fit decreasing where the search gives up."""
    greedy, search = best_fit(counts), _Search(steps)
    for gpus in range(lower_bound(counts), len(greedy)):
        if gpus > DEEPEST:
            return Cover(greedy, gpus)
        found = search.within(counts, gpus)
        if found is not None:
            return Cover(tuple(sorted(found, reverse=True)), gpus)
        if search.tired:
            return Cover(greedy, gpus)
    return Cover(greedy, len(greedy))


def best_fit(counts: Counts) -> tuple[Counts, ...]:
    """Largest kinds first, each where it leaves the least room."""
    gpus: Counter[Counts] = Counter()  # equal ones together: there are no more than 77
    for kind in reversed(range(len(KINDS))):
        for _ in range(counts[kind]):
            fitting = [gpu for gpu in +gpus if fits(with_one(gpu, kind))]
            fullest = min(fitting, key=lambda gpu: (_room(gpu), gpu), default=NONE)
            gpus[fullest] -= 1
            gpus[with_one(fullest, kind)] += 1
    return tuple(sorted((+gpus).elements(), reverse=True))


def _room(gpu: Counts) -> tuple[int, int]:
    return free_memory(gpu), free_compute(gpu)


def lower_bound(counts: Counts) -> int:
    """GPUs that are needed in any case: by memory, by compute, and by the halves that 3g and 4g
    take; by the single place of 4g; by the three of 2g."""
    one, double, two, three, four, seven = counts
    sizes = sum(n * kind.size for n, kind in zip(counts, KINDS, strict=True))
    slices = sum(n * kind.compute for n, kind in zip(counts, KINDS, strict=True))
    # At most 7 instances of any kind, and a half has room for 2 of two memory slices.
    return max(
        ceil(sizes / MEMORY_SLICES),
        ceil(slices / COMPUTE_SLICES),
        seven + ceil((three + four) / 2),
        seven + four,
        seven + ceil((double + two + 2 * (three + four)) / 4),
        seven + ceil(two / 3),
        seven + ceil((one + double + two) / 7),
    )


@dataclass
class _Search:
    """steps: left. failed: what could not be held, by how many GPUs."""

    steps: int
    failed: set[tuple[Counts, int]] = field(default_factory=set)

    @property
    def tired(self) -> bool:
        return self.steps <= 0

    def within(self, counts: Counts, gpus: int) -> tuple[Counts, ...] | None:
        """The instances of at most so many GPUs; None: not found."""
        if not any(counts):
            return ()
        if self.tired or lower_bound(counts) > gpus or (counts, gpus) in self.failed:
            return None
        self.steps -= 1
        for part in _parts(counts):
            rest = self.within(_without(counts, part), gpus - 1)
            if rest is not None:
                return (part, *rest)
        if not self.tired:
            self.failed.add((counts, gpus))
        return None


def _parts(counts: Counts) -> Iterator[Counts]:
    """What one GPU may take of them, the largest kind among it: fullest first, none within
    another."""
    largest = max(kind for kind in range(len(KINDS)) if counts[kind])
    clipped = {
        tuple(min(a, b) for a, b in zip(layout, counts, strict=True))
        for layout in maximal()
        if layout[largest]
    }
    kept = [part for part in clipped if not any(_within(part, other) for other in clipped)]
    yield from sorted(kept, key=lambda part: (_room(part), part))


def _within(part: Counts, other: Counts) -> bool:
    return part != other and all(a <= b for a, b in zip(part, other, strict=True))


def _without(counts: Counts, part: Counts) -> Counts:
    return tuple(a - b for a, b in zip(counts, part, strict=True))


@dataclass(frozen=True, slots=True)
class SliceDemand:
    """Equal replicas, each of which gets a slice of its own."""

    name: str  # a model, or a model's group
    replicas: int
    need_mib: int  # all memory that one replica takes of its slice
    profile: str = ""  # the slice that was asked for; "": the cheapest that holds a replica


@dataclass(frozen=True, slots=True)
class Slice:
    """An instance on a GPU and the replica that it is for. number: of the demand's, from 0."""

    profile: Profile
    placement: InstancePlacement
    demand: SliceDemand
    number: int

    @property
    def spare_mib(self) -> int:
        """What the replica leaves of it."""
        return (self.profile.usable_mib or 0) - self.demand.need_mib


@dataclass(frozen=True, slots=True)
class PlannedGpu:
    """slices: as they stand, by memory slice."""

    gpu: Gpu
    counts: Counts
    slices: tuple[Slice, ...]

    @property
    def free_compute(self) -> int:
        """Compute slices that no instance has."""
        return self.gpu.compute_slices - sum(each.profile.compute for each in self.slices)

    @property
    def uncut_mib(self) -> int | None:
        """Memory that no instance has; None: nobody knows how much the GPU has."""
        if self.gpu.usable_mib is None:
            return None
        return self.gpu.usable_mib - sum(each.profile.usable_mib or 0 for each in self.slices)

    @property
    def spare_mib(self) -> int:
        """Memory that replicas leave of their slices."""
        return sum(each.spare_mib for each in self.slices)

    @property
    def room(self) -> tuple[tuple[Profile, ...], ...]:
        """What could still be cut from it, each a largest choice; none: the rest is stranded."""
        kinds = [each.kind for each in self.gpu.profiles]
        return tuple(
            tuple(self.gpu.of_kind(k) for k, n in enumerate(each) for _ in range(n))
            for each in left_over(self.counts, kinds)
        )


@dataclass(frozen=True, slots=True)
class Unplaced:
    """replicas: how many of the demand's have no place. reason: why, as a sentence's end."""

    demand: SliceDemand
    replicas: int
    reason: str


@dataclass(frozen=True, slots=True)
class Packing:
    """at_least: GPUs that what was placed needs in any case; fewer than `gpus` where the search was
    given up before it knew."""

    gpu: Gpu
    gpus: tuple[PlannedGpu, ...]
    rejected: tuple[Unplaced, ...]
    at_least: int

    @property
    def proved(self) -> bool:
        return len(self.gpus) == self.at_least


def pack(gpu: Gpu, demands: Sequence[SliceDemand], max_gpus: int | None = None) -> Packing:
    """`max_gpus`: how many there are, None: as many as it takes. Names of demands are unlike."""
    profiles = {demand.name: profile_for(gpu, demand) for demand in demands}
    rejected = [
        Unplaced(demand, demand.replicas, found)
        for demand in demands
        if isinstance(found := profiles[demand.name], str)
    ]
    able = [(d, p) for d in demands if isinstance(p := profiles[d.name], Profile)]
    admitted, covered = _admitted(able, max_gpus)
    for (demand, profile), fitting in zip(able, admitted, strict=True):
        if fitting < demand.replicas:
            missing = demand.replicas - fitting
            rejected.append(Unplaced(demand, missing, _no_room(profile, fitting, max_gpus or 0)))
    gpus = _planned(gpu, able, admitted, covered.gpus)
    return Packing(gpu, gpus, tuple(rejected), covered.at_least)


def profile_for(gpu: Gpu, demand: SliceDemand) -> Profile | str:
    """The slice of each of its replicas, or why there is none."""
    if not demand.profile:
        return gpu.smallest(demand.need_mib) or _too_large(gpu, demand)
    profile = gpu.named(demand.profile)
    if profile is None:
        have = ", ".join(each.name for each in gpu.profiles)
        return f"asks for {demand.profile}, which {gpu.name} has not; must be one of {have}"
    if profile.usable_mib is None:
        return f"asks for {profile.name}, whose usable memory on {gpu.name} is not known"
    if profile.usable_mib < demand.need_mib:
        return (
            f"needs {demand.need_mib:,} MiB, and the {profile.name} that it asks for holds "
            f"{profile.usable_mib:,}"
        )
    return profile


def _too_large(gpu: Gpu, demand: SliceDemand) -> str:
    largest, unknown = gpu.largest(), gpu.unknown()
    if len(unknown) == len(gpu.profiles):
        names = ", ".join(each.name for each in unknown)
        return (
            f"needs {demand.need_mib:,} MiB, and nobody has published how much of {gpu.name}'s "
            f"slices ({names}) is usable; --usable must say what a node of yours reports"
        )
    said = (
        f"needs {demand.need_mib:,} MiB, and {largest.name}, the largest slice of {gpu.name} "
        f"whose size is known, holds {largest.usable_mib or 0:,}"
    )
    if unknown:
        names = ", ".join(each.name for each in unknown)
        return f"{said}; the usable memory of {names} is not known"
    return said


def _no_room(profile: Profile, fitting: int, gpus: int) -> str:
    others = f", {fitting} of its replicas have one" if fitting else ""
    return f"finds no further {profile.name} on {gpus} GPU{'' if gpus == 1 else 's'}{others}"


def _admitted(
    able: Sequence[tuple[SliceDemand, Profile]], max_gpus: int | None
) -> tuple[list[int], Cover]:
    """How many replicas of each may be placed, and a way to hold them."""
    everything = [demand.replicas for demand, _ in able]
    found = cover(_counted(able, everything))
    if max_gpus is None or len(found.gpus) <= max_gpus:
        return everything, found
    return _in_turns(able, _Room(max_gpus))


def _in_turns(able: Sequence[tuple[SliceDemand, Profile]], room: _Room) -> tuple[list[int], Cover]:
    """One replica of each a turn."""
    admitted = [0] * len(able)
    for turn in range(max(demand.replicas for demand, _ in able)):
        for n, (demand, profile) in enumerate(able):
            if turn < demand.replicas and room.takes(profile.kind):
                admitted[n] += 1
    best = cover(room.counts)
    known = Cover(tuple(room.gpus), best.at_least)
    return admitted, min(best, known, key=lambda each: len(each.gpus))


@dataclass
class _Room:
    """GPUs that fill up. gpus: a way to hold `counts`; full: kinds that found no place, and later
    find none either."""

    max_gpus: int
    counts: Counts = NONE
    gpus: list[Counts] = field(default_factory=list)
    full: set[int] = field(default_factory=set)

    def takes(self, kind: int) -> bool:
        """Whether there is a place for one more, which then is taken."""
        if kind in self.full or not self._put(kind):
            self.full.add(kind)
            return False
        self.counts = with_one(self.counts, kind)
        return True

    def _put(self, kind: int) -> bool:
        for n, gpu in enumerate(self.gpus):
            if fits(with_one(gpu, kind)):
                self.gpus[n] = with_one(gpu, kind)
                return True
        found = cover(with_one(self.counts, kind)).gpus
        if len(found) > self.max_gpus:
            return False
        self.gpus = list(found)
        return True


def _counted(able: Sequence[tuple[SliceDemand, Profile]], replicas: Sequence[int]) -> Counts:
    counts = NONE
    for (_, profile), number in zip(able, replicas, strict=True):
        counts = with_one(counts, profile.kind, number)
    return counts


def _planned(
    gpu: Gpu,
    able: Sequence[tuple[SliceDemand, Profile]],
    replicas: Sequence[int],
    layouts: Sequence[Counts],
) -> tuple[PlannedGpu, ...]:
    state = spread(layouts, [profile.kind for _, profile in able], replicas)
    numbers = [count() for _ in able]
    planned = []
    # Equal layouts beside each other, so that nodes may share one.
    for counts, held in sorted(zip(state.counts, state.held, strict=True), reverse=True):
        places = placed(counts)
        assert places is not None
        if not places:
            continue  # it was emptied while replicas were spread
        free = sorted(places, key=lambda each: (each.kind, each.start))
        slices = []
        for n, (demand, profile) in enumerate(able):
            for _ in range(held[n]):
                place = _taken(free, profile.kind)
                slices.append(Slice(profile, place, demand, next(numbers[n])))
        slices.sort(key=lambda each: each.placement.start)
        planned.append(PlannedGpu(gpu, counts, tuple(slices)))
    return tuple(planned)


def _taken(free: list[InstancePlacement], kind: int) -> InstancePlacement:
    found = next(each for each in free if each.kind == kind)
    free.remove(found)
    return found
