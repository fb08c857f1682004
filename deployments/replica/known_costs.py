"""What batches cost, as a starting replica knows it: from a stored profile, or measured by itself.

A profile that `headrace profile` stored for exactly this model on this processor saves measuring at
the start. It also brings the edges and the batch target that were found with it. It never changes
what the settings state themselves (listed edges).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from deployments.replica.stored_profile import Lookup, StoredProfile, identity_of, look_up
from deployments.settings.model import ModelSettings
from runtimes.profiling import Profile, measure
from runtimes.types import Runtime, RuntimeSettings


@dataclass(frozen=True, slots=True)
class KnownCosts:
    """What a replica knows of its costs."""

    points: Profile = ()  # (rows, width, seconds) that gateways start from
    source: str = "none; learnt from callers' batches"  # of the points, for people
    edges: tuple[int, ...] | None = None  # to start from; None: the settings'
    target_rows: int | None = None  # one more bound on a batch's rows; None: no bound


@dataclass(frozen=True, slots=True)
class Start:
    """What a replica starts with."""

    settings: RuntimeSettings
    stored: StoredProfile | None = None
    why_not: str = ""  # a stored profile is not used
    measured: Profile = ()  # by replicas with the same settings that run already


def start_of(settings: RuntimeSettings, model: ModelSettings, cache_dir: Path) -> Start:
    """The runtime's settings, and the stored profile if there is one. Raises `LoadError` and
    `RefusedArtifact`, as loading would."""
    if model.profile == "start":
        return Start(settings)
    lookup: Lookup = look_up(identity_of(settings), cache_dir)
    stored = lookup.profile
    if stored is None:
        return Start(settings, None, lookup.problem)
    edges = _edges(stored, model)
    return Start(settings if edges is None else replace(settings, edges=edges), stored)


def known_costs(
    start: Start, model: ModelSettings, runtime: Runtime, log: Callable[[str], None]
) -> KnownCosts:
    """The costs of a warm runtime. Measures for `profile_s` if nothing is stored and no other
    replica has measured: gateways keep the first profile of a version. `log` gets their source."""
    if start.why_not:
        log(f"no stored profile is used: {start.why_not}")
    if start.stored is not None:
        known = _of_stored(start.stored, model)
    elif start.measured:
        known = KnownCosts(start.measured, "measured by a replica that ran already")
    else:
        points = measure(start.settings, runtime.limits(), runtime.run, model.profile_s)
        source = f"measured at the start, {model.profile_s:g} s"
        known = KnownCosts(points, source) if points else KnownCosts()
    log(f"costs: {known.source}")
    return known


def _of_stored(stored: StoredProfile, model: ModelSettings) -> KnownCosts:
    target = stored.target_rows
    most = max((rows for rows, _, _ in stored.points), default=0)
    if target is not None and most <= target < model.batch.max_size:
        target = None  # the profile saw no knee, and larger batches are allowed now
    edges, source = _edges(stored, model), f"stored, {stored.measured_at}"
    if stored.edges and edges is None and model.lengths.buckets == "auto":
        source += f"; its edges end at {stored.edges[-1]}, not at lengths.max, and are not used"
    return KnownCosts(stored.points, source, edges, target)


def _edges(stored: StoredProfile, model: ModelSettings) -> tuple[int, ...] | None:
    lengths = model.lengths
    fits = bool(stored.edges) and stored.edges[-1] == lengths.max
    return stored.edges if fits and lengths.buckets == "auto" else None
