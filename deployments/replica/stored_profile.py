"""Finds the profile that `headrace profile` stored for exactly this model, if it may be used here.

Each profile is one JSON file in the cache folder, written whole or not at all. It is used only if
everything that its numbers depend on is the same: artifact, backend and its version, precision,
task, threads, options, processor, GPUs. Of another profile of the same artifact, the differences
are reported.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from runtimes import catalog, source, staging
from runtimes.types import RuntimeSettings

FORMAT = 1
FOLDER = "profiles"
Profile = tuple[tuple[int, int, float], ...]


@dataclass(frozen=True, slots=True)
class Identity:
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

    def differs(self, other: Identity) -> tuple[str, ...]:
        """The fields that differ, as parts of a sentence. `other`: the stored one's."""
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return tuple(f"{name} {stored!r}, not {current!r}" for name, current, stored in pairs
                     if current != stored)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredProfile:
    """What `headrace profile` has found."""

    identity: Identity
    measured_at: str  # UTC, ISO 8601
    points: Profile  # (rows, width, seconds), from which gateways fit their costs
    # That fit, for people: launch, row, token and square, seconds each.
    coefficients: tuple[float, float, float, float]
    target_rows: int | None = None  # more rows gain no throughput; None: `max_size` still gains
    edges: tuple[int, ...] = ()  # for the lengths given, the last is `lengths.max`; (): none given
    error: tuple[float, float] | None = None  # median and p99 of the fit's relative error


@dataclass(frozen=True, slots=True)
class Lookup:
    """The result of a search."""

    profile: StoredProfile | None = None  # None: none may be used
    problem: str = ""  # why not; "": none is stored of this artifact at all


def identity_of(settings: RuntimeSettings) -> Identity:
    """The identity of a profile of these settings. Raises `LoadError` and `RefusedArtifact`, as
    loading would."""
    artifact = ""
    if settings.source is not None and settings.runtime != "synthetic":
        artifact = source.inspect(settings.source, settings.cache_dir).digest
    return Identity(
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


def look_up(wanted: Identity, cache_dir: Path) -> Lookup:
    """The profile of exactly this identity; otherwise how the most similar one differs."""
    path = _path(wanted, cache_dir)
    if path.is_file():
        try:
            profile = _read(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            return Lookup(None, f"{path} cannot be used: {error}")
        if profile.identity == wanted:
            return Lookup(profile)
    others = [wanted.differs(other) for other in _others(path.parent)]
    if not others:
        return Lookup()
    nearest = min(others, key=len)
    return Lookup(None, f"the stored profile is of {' and of '.join(nearest)}")


def _path(identity: Identity, cache_dir: Path) -> Path:
    parts = json.dumps(list(asdict(identity).values()))
    name = hashlib.sha256(parts.encode()).hexdigest()[:32]
    return cache_dir / FOLDER / (identity.artifact[:32] or identity.runtime) / f"{name}.json"


def _others(folder: Path) -> Iterator[Identity]:
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
        identity=Identity(**data["identity"]),
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
