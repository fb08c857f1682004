"""Stores built TensorRT plans on disk, and checks whether a stored plan may run here.

A *plan* is code for one model of GPU, one driver and one version of TensorRT. Plans are staged
under a key of these and of the model, beside a file of facts that says what they were built for.
Folders get copied between machines and into images, so the facts are checked before a plan is
opened: a plan for another GPU, driver, TensorRT or model is refused, and the message says which.
The timing cache makes later builds shorter; one is kept for each GPU, driver and TensorRT, for all
models.

Imports no library. Source: TensorRT's developer guide on compatibility and the timing cache.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from runtimes.cuda.driver import VisibleGpu
from runtimes.errors import LoadError, RefusedArtifact

FACTS = "plans.json"


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """What plans were built from, and for which machine."""

    model: str
    tensorrt: str  # version
    driver: str  # version
    gpu: str
    capability: str  # CUDA compute capability
    shapes: str  # digest of engines and profiles

    @classmethod
    def of(cls, model: str, tensorrt: str, gpu: VisibleGpu, shapes: str) -> PlanFacts:
        return cls(model, tensorrt, gpu.driver, gpu.name, gpu.capability, shapes)

    def key(self) -> list[str]:
        return [f"{field.name}={getattr(self, field.name)}" for field in fields(self)]


def write(facts: PlanFacts, folder: Path) -> None:
    (folder / FACTS).write_text(json.dumps(asdict(facts), indent=1))


def check(folder: Path, here: PlanFacts) -> None:
    """Raises `RefusedArtifact` if the folder's plans are for another machine or model, and
    `LoadError` if it has none."""
    try:
        stored = PlanFacts(**json.loads((folder / FACTS).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise LoadError(f"{folder} holds no TensorRT plans ({FACTS}: {error})") from error
    if (stored.gpu, stored.capability) != (here.gpu, here.capability):
        raise _refused(
            folder,
            f"for another GPU, {stored.gpu} (compute capability {stored.capability}); this is "
            f"{here.gpu} ({here.capability})",
        )
    if stored.tensorrt != here.tensorrt:
        raise _refused(folder, f"by TensorRT {stored.tensorrt}; this is {here.tensorrt}")
    if stored.driver != here.driver:
        raise _refused(folder, f"under driver {stored.driver}; this is {here.driver}")
    if (stored.model, stored.shapes) != (here.model, here.shapes):
        raise _refused(folder, "of another model, or for other buckets, batches or precision")


def timing_cache(cache_dir: Path, here: PlanFacts) -> Path:
    """The timing cache's file for this GPU, driver and TensorRT; creates its folder."""
    parts = json.dumps([here.tensorrt, here.driver, here.gpu, here.capability])
    folder = cache_dir / "tensorrt-timing"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{hashlib.sha256(parts.encode()).hexdigest()[:32]}.cache"


def _refused(folder: Path, why: str) -> RefusedArtifact:
    return RefusedArtifact(
        f"the TensorRT plans in {folder} were built {why}. Remove the option 'plans' to have them "
        "built here"
    )
