"""The findings of a profile: everything that is printed, drawn, stored or written as JSON.

Parts that were not reached, or that do not apply to the model, are None or empty.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from deployments.replica.known_costs import ProfileIdentity
from deployments.tools.profile.binding import Binding
from deployments.tools.profile.fitting import Fitted, Knee
from deployments.tools.profile.lengths import RowLengths
from deployments.tools.profile.overhead import MemoryUse, Tokenising
from deployments.tools.profile.queue_depth import Depth
from deployments.tools.profile.sweep import TimedRun
from runtimes.footprint import Parameters
from runtimes.types import Limits, RuntimeSettings


@dataclass(frozen=True, slots=True)
class Subject:
    """The model that is profiled, as a replica would load it. `max_s`: what a batch may take of
    the SLO; `replicas`: how many the settings ask for."""

    name: str
    settings: RuntimeSettings
    identity: ProfileIdentity
    limits: Limits
    lengths: RowLengths
    parameters: Parameters | None
    max_s: float
    replicas: int


@dataclass(frozen=True, slots=True)
class Peaks:
    """Of this machine with the model's threads: operations a second of a matrix product in the
    model's number format (None unknown), bytes a second of a copy."""

    flops: float | None
    copied_bytes: float


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of the profile, for the trace; seconds of the clock."""

    name: str
    began_s: float
    ended_s: float


@dataclass(slots=True)
class Findings:
    """Filled in the order of its fields. `hop_s`: a batch's way to the device's thread and back,
    beside the run itself; `others`: share of the processors that other processes used meanwhile;
    `stopped`: somebody asked to stop before the end; `edges`: for the lengths that were given."""

    subject: Subject
    memory: MemoryUse | None = None
    peaks: Peaks | None = None
    samples: list[TimedRun] = field(default_factory=list)
    others: float | None = None
    hop_s: float | None = None
    fitted: Fitted | None = None
    knees: tuple[Knee, ...] = ()
    target: int | None = None
    edges: tuple[int, ...] = ()
    tokenising: Tokenising | None = None
    binding: Binding | None = None
    depths: list[Depth] = field(default_factory=list)
    spans: list[Phase] = field(default_factory=list)
    stopped: bool = False

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints; times in seconds."""
        fitted = self.fitted
        return {
            "model": self.subject.name,
            "identity": asdict(self.subject.identity),
            "lengths": {"from": self.subject.lengths.said, "mean": self.subject.lengths.mean},
            "memory": None if self.memory is None else asdict(self.memory),
            "peaks": None if self.peaks is None else asdict(self.peaks),
            "points": [] if fitted is None else fitted.points,
            "coefficients": None if fitted is None else asdict(fitted.coefficients),
            "error": None if fitted is None else {
                name: None if error is None else asdict(error)
                for name, error in (
                    ("held_out", fitted.held), ("held_out_runs", fitted.runs),
                    ("fitted", fitted.fitted), ("noise", fitted.noise),
                )
            },
            "knees": [asdict(knee) for knee in self.knees],
            "target_rows": self.target,
            "edges": self.edges,
            "hop_s": self.hop_s,
            "tokenising": None if self.tokenising is None else asdict(self.tokenising),
            "binding": None if self.binding is None else asdict(self.binding),
            "depths": [asdict(depth) for depth in self.depths],
            "others": self.others,
            "stopped": self.stopped,
        }  # fmt: skip
