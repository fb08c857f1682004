"""What batches cost, as a starting replica knows it, and whether it may serve with such costs.

A profile that `headrace profile` stored saves measuring at the start, and brings the edges and the
batch target that were found with it. It never changes what the settings state themselves. It is
used only if everything that its numbers depend on is the same (`ProfileIdentity`).

A replica of a new version compares its costs with the live version's. Where the live version is
much faster, the replica measures again before it refuses to start: what else runs on the machine
disturbs a measurement, and the least time of several is the device's own. Where there is nothing to
compare with, it is let in. The rule is `process/cost_gate.py`. Seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from deployments.contract.rollout.observations import CostBounds, LiveCosts
from deployments.process.cost_gate import refusal
from deployments.settings.model import ModelSettings
from runtimes import catalog, staging
from runtimes.errors import LoadError
from runtimes.profiling import Profile, measure
from runtimes.types import Runtime, RuntimeSettings

FORMAT = 1
FOLDER = "profiles"
MEASURES = 3  # times in all, until a version counts as too slow
PAUSE_S = 1.0  # before each further one: most disturbances are over by then
_MAX_MEASURE_S = 5.0  # of each further one


@dataclass(frozen=True, slots=True)
class ProfileIdentity:
    """All that a profile's numbers depend on."""

    artifact: str  # digest; "" for a model without one
    runtime: str
    version: str  # of the backend's package
    precision: str
    task: str
    threads: int
    options: str  # as JSON, keys in order
    processor: str
    gpus: str  # the machine's models; "" without any

    def differs(self, other: ProfileIdentity) -> tuple[str, ...]:
        """The fields that differ, as parts of a sentence. `other`: the stored one's."""
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return tuple(f"{name} {stored!r}, not {current!r}" for name, current, stored in pairs
                     if current != stored)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredProfile:
    """What `headrace profile` has found."""

    identity: ProfileIdentity
    measured_at: str  # UTC, ISO 8601
    points: Profile  # (rows, width, seconds), from which gateways fit their costs
    # That fit, for people: launch, row, token and square, seconds each.
    coefficients: tuple[float, float, float, float]
    target_rows: int | None = None  # more rows gain no throughput; None: `max_size` still gains
    edges: tuple[int, ...] = ()  # for the lengths given, the last is `lengths.max`; (): none given
    error: tuple[float, float] | None = None  # median and p99 of the fit's relative error


@dataclass(frozen=True, slots=True)
class ProfileLookup:
    """The result of a search."""

    profile: StoredProfile | None = None  # None: none may be used
    problem: str = ""  # why not; "": none is stored of this artifact at all


def identity_of(settings: RuntimeSettings) -> ProfileIdentity:
    """The identity of a profile of these settings. Raises `LoadError` and `RefusedArtifact`, as
    loading would."""
    artifact = ""
    if settings.source is not None and settings.runtime != "synthetic":
        artifact = catalog.digest(settings.runtime, settings.source, settings.cache_dir)
    return ProfileIdentity(
        artifact=artifact,
        runtime=settings.runtime,
        version=catalog.version(settings.runtime),
        precision=settings.precision,
        task=settings.task,
        threads=settings.threads,
        options=json.dumps(dict(settings.options), sort_keys=True, default=str),
        processor=staging.processor(),
        gpus=_gpus(),
    )


def save(profile: StoredProfile, cache_dir: Path) -> Path:
    """Store the profile and return its path. Raises OSError; then nothing has changed."""
    path = _path(profile.identity, cache_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format": FORMAT, **asdict(profile)}, indent=1) + "\n"
    descriptor, unfinished = tempfile.mkstemp(prefix=f".{path.stem}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(unfinished).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(unfinished).unlink()
        raise
    return path


def look_up(wanted: ProfileIdentity, cache_dir: Path) -> ProfileLookup:
    """The profile of exactly this identity; otherwise how the most similar one differs."""
    path = _path(wanted, cache_dir)
    if path.is_file():
        try:
            profile = _read(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            return ProfileLookup(None, f"{path} cannot be used: {error}")
        if profile.identity == wanted:
            return ProfileLookup(profile)
    others = [wanted.differs(other) for other in _others(path.parent)]
    if not others:
        return ProfileLookup()
    nearest = min(others, key=len)
    return ProfileLookup(None, f"the stored profile is of {' and of '.join(nearest)}")


def _path(identity: ProfileIdentity, cache_dir: Path) -> Path:
    parts = json.dumps(list(asdict(identity).values()))
    name = hashlib.sha256(parts.encode()).hexdigest()[:32]
    return cache_dir / FOLDER / (identity.artifact[:32] or identity.runtime) / f"{name}.json"


def _others(folder: Path) -> Iterator[ProfileIdentity]:
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            yield _read(path).identity


def _read(path: Path) -> StoredProfile:
    """Raises OSError, ValueError, KeyError or TypeError for a file of another format."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if data["format"] != FORMAT:
        raise ValueError(f"its format is {data['format']}, this version reads {FORMAT}")
    error, target = data["error"], data["target_rows"]
    launch, row, token, square = map(float, data["coefficients"])
    points = tuple((int(rows), int(width), float(s)) for rows, width, s in data["points"])
    edges = tuple(map(int, data["edges"]))
    if not points or min(s for *_, s in points) <= 0.0 or list(edges) != sorted(set(edges)):
        raise ValueError("its points or edges are inconsistent")
    return StoredProfile(
        identity=ProfileIdentity(**data["identity"]),
        measured_at=str(data["measured_at"]),
        points=points,
        coefficients=(launch, row, token, square),
        target_rows=None if target is None else max(1, int(target)),
        edges=edges,
        error=None if error is None else (float(error[0]), float(error[1])),
    )


def _gpus() -> str:
    """The names of NVIDIA GPUs, as their driver lists them; "" if this process may see none."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1", "NoDevFiles"):
        return ""
    lines = [
        line
        for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
    ]
    return ", ".join(line.partition(":")[2].strip() for line in lines if line.startswith("Model:"))


@dataclass(frozen=True, slots=True)
class KnownCosts:
    """What a replica knows of its costs."""

    points: Profile = ()  # (rows, width, seconds) that gateways start from
    source: str = "none; learnt from callers' batches"  # of the points, for people
    edges: tuple[int, ...] | None = None  # to start from; None: the settings'
    target_rows: int | None = None  # one more bound on a batch's rows; None: no bound


@dataclass(frozen=True, slots=True)
class CostSources:
    """Where a starting replica may have its costs from."""

    settings: RuntimeSettings
    stored: StoredProfile | None = None
    why_not: str = ""  # a stored profile is not used
    measured: Profile = ()  # by replicas with the same settings that run already


def cost_sources(settings: RuntimeSettings, model: ModelSettings, cache_dir: Path) -> CostSources:
    """The runtime's settings, and the stored profile if there is one. Raises `LoadError` and
    `RefusedArtifact`, as loading would."""
    if model.profile == "start":
        return CostSources(settings)
    lookup = look_up(identity_of(settings), cache_dir)
    stored = lookup.profile
    if stored is None:
        return CostSources(settings, None, lookup.problem)
    edges = _edges(stored, model)
    return CostSources(settings if edges is None else replace(settings, edges=edges), stored)


def known_costs(
    sources: CostSources, model: ModelSettings, runtime: Runtime, log: Callable[[str], None]
) -> KnownCosts:
    """The costs of a warm runtime. Measures for `profile_s` if nothing is stored and no other
    replica has measured: gateways keep the first profile of a version. `log` gets their source."""
    if sources.why_not:
        log(f"no stored profile is used: {sources.why_not}")
    if sources.stored is not None:
        known = _of_stored(sources.stored, model)
    elif sources.measured:
        known = KnownCosts(sources.measured, "measured by a replica that ran already")
    else:
        points = measure(sources.settings, runtime.limits(), runtime.run, model.profile_s)
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


class TooCostly(LoadError):
    """Batches take too long; the message says of which length, how long, and the bound."""


async def admit(
    points: Profile,
    bounds: CostBounds,
    live_costs: Callable[[], Awaitable[LiveCosts | None]],
    measure_again: Callable[[], Awaitable[Profile]],
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Profile:
    """The costs, each the least that was measured. `live_costs` is asked anew each time, because
    what disturbs the replica slows the live version too. Raises `TooCostly`."""
    for number in range(1, MEASURES + 1):
        live = await live_costs()
        why = "" if live is None else refusal(live, points, bounds)
        if not why:
            return points
        if number < MEASURES:
            await pause(PAUSE_S)
            points = least(points, await measure_again())
    raise TooCostly(f"{why} (measured {MEASURES} times; accept.max_cost_ratio)")


def least(before: Profile, again: Profile) -> Profile:
    """The points of `before`, with the least time that either has."""
    known = {(rows, length): seconds for rows, length, seconds in again}
    return tuple((r, n, min(s, known.get((r, n), s))) for r, n, s in before)


def measured_again(
    settings: RuntimeSettings, runtime: Runtime, seconds: float, cache_dir: Path
) -> Profile:
    """Measure once more, while no other replica of this host does, unless the folder cannot be
    written. Blocks."""
    with contextlib.ExitStack() as alone:
        with contextlib.suppress(OSError):
            cache_dir.mkdir(parents=True, exist_ok=True)
            alone.enter_context(staging.exclusive(cache_dir / "costs"))
        return measure(settings, runtime.limits(), runtime.run, min(seconds, _MAX_MEASURE_S))
