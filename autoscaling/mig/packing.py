"""Which slice of which GPU does each replica get, on as few GPUs as possible, and which have none?

Each replica gets the cheapest slice that holds it (or the one that was asked for); a larger slice
would never save a GPU (`geometry`). `covering` finds the number of GPUs; `spreading` decides which
replica goes where. If there are too few GPUs, every demand gets its first replica before any gets a
second, in the order given. `geometry` checks every layout, so no placement is impossible.

To a scheduler equal slices are interchangeable. The plan proves that all replicas fit, not that a
pod will run on the GPU that is named here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from autoscaling.mig.covering import Cover, cover
from autoscaling.mig.geometry import NONE, Counts, Placement, fits, placed, with_one
from autoscaling.mig.gpus import Gpu, Profile
from autoscaling.mig.spreading import spread
from autoscaling.mig.types import Demand, Plan, PlannedGpu, Rejection, Slice


def pack(gpu: Gpu, demands: Sequence[Demand], max_gpus: int | None = None) -> Plan:
    """`max_gpus`: how many there are, None: as many as it takes. Names of demands are unlike."""
    profiles = {demand.name: profile_for(gpu, demand) for demand in demands}
    rejected = [
        Rejection(demand, demand.replicas, found)
        for demand in demands
        if isinstance(found := profiles[demand.name], str)
    ]
    able = [(d, p) for d in demands if isinstance(p := profiles[d.name], Profile)]
    admitted, covered = _admitted(able, max_gpus)
    for (demand, profile), fitting in zip(able, admitted, strict=True):
        if fitting < demand.replicas:
            missing = demand.replicas - fitting
            rejected.append(Rejection(demand, missing, _no_room(profile, fitting, max_gpus or 0)))
    gpus = _planned(gpu, able, admitted, covered.gpus)
    return Plan(gpu, gpus, tuple(rejected), covered.at_least)


def profile_for(gpu: Gpu, demand: Demand) -> Profile | str:
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


def _too_large(gpu: Gpu, demand: Demand) -> str:
    largest, unknown = gpu.largest(), gpu.unknown()
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
    able: Sequence[tuple[Demand, Profile]], max_gpus: int | None
) -> tuple[list[int], Cover]:
    """How many replicas of each may be placed, and a way to hold them."""
    everything = [demand.replicas for demand, _ in able]
    found = cover(_counted(able, everything))
    if max_gpus is None or len(found.gpus) <= max_gpus:
        return everything, found
    return _in_turns(able, _Room(max_gpus))


def _in_turns(able: Sequence[tuple[Demand, Profile]], room: _Room) -> tuple[list[int], Cover]:
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


def _counted(able: Sequence[tuple[Demand, Profile]], replicas: Sequence[int]) -> Counts:
    counts = NONE
    for (_, profile), number in zip(able, replicas, strict=True):
        counts = with_one(counts, profile.kind, number)
    return counts


def _planned(
    gpu: Gpu,
    able: Sequence[tuple[Demand, Profile]],
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


def _taken(free: list[Placement], kind: int) -> Placement:
    found = next(each for each in free if each.kind == kind)
    free.remove(found)
    return found
