"""Demands for slices of MIG-partitioned GPUs, and plans of them. Plain values; memory in MiB."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaling.mig.geometry import Counts, Placement, free_compute, left_over
from autoscaling.mig.gpus import Gpu, Profile


@dataclass(frozen=True, slots=True)
class Demand:
    """Equal replicas, each of which gets a slice of its own."""

    name: str  # a model, or a model's group
    replicas: int
    need_mib: int  # all memory that one replica takes of its slice
    profile: str = ""  # the slice that was asked for; "": the cheapest that holds a replica


@dataclass(frozen=True, slots=True)
class Slice:
    """An instance on a GPU and the replica that it is for. number: of the demand's, from 0."""

    profile: Profile
    placement: Placement
    demand: Demand
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
        return free_compute(self.counts)

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
        return tuple(
            tuple(self.gpu.profiles[k] for k, n in enumerate(each) for _ in range(n))
            for each in left_over(self.counts)
        )


@dataclass(frozen=True, slots=True)
class Rejection:
    """replicas: how many of the demand's have no place. reason: why, as a sentence's end."""

    demand: Demand
    replicas: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """at_least: GPUs that what was placed needs in any case; fewer than `gpus` where the search was
    given up before it knew."""

    gpu: Gpu
    gpus: tuple[PlannedGpu, ...]
    rejected: tuple[Rejection, ...]
    at_least: int

    @property
    def proved(self) -> bool:
        return len(self.gpus) == self.at_least
