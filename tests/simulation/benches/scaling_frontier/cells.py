"""What is measured: a side at one setting, on one trace with one start time, by one seed.

Results are kept, one JSON object a line, so that a sweep that was interrupted goes on and one side
can be measured again alone. A row of the same key that comes later holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from autoscaling.settings import PolicySettings
from tests.simulation.benches.scaling_frontier import rivals
from tests.simulation.benches.scaling_frontier.load import Load
from tests.simulation.benches.scaling_frontier.ours import Headrace
from tests.simulation.benches.scaling_frontier.pool import play_shared
from tests.simulation.benches.scaling_frontier.world import Played, Policy, Starts, play

OURS, POOLED, CLAIRVOYANT = "Headrace", "Headrace, shared pool", "clairvoyant"
RAY_DEFAULT, RAY_TUNED = "Ray Serve", "Ray Serve, tuned"
Make = Callable[[Load, Starts], Policy]


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of a side's sweep. value: what is swept."""

    side: str
    value: float
    make: Make

    @property
    def name(self) -> str:
        return f"{self.side} {self.value:g}"


@dataclass(frozen=True, slots=True)
class Cell:
    trace: str
    start_s: float
    side: str
    value: float
    seed: int
    offered: int = 0
    missed: int = 0
    replica_h: float = 0.0
    changes: int = 0
    reversals: int = 0

    @property
    def key(self) -> tuple[str, float, str, float, int]:
        return self.trace, self.start_s, self.side, self.value, self.seed


def _ray(tuned: bool, target: float, down_s: float = 300.0) -> Policy:
    from tests.simulation.benches.scaling_frontier import ray_policy  # takes 2 s

    return ray_policy.tuned(target, down_s) if tuned else ray_policy.default(target)


def rivals_settings() -> list[Setting]:
    """Every rival with its target swept; of those with a window, the window too."""
    swept: Mapping[str, tuple[tuple[float, ...], Callable[[float], Make]]] = {
        "static": (
            (9, 10, 12, 16, 20, 26, 32, 40), lambda v: lambda load, starts: rivals.Static(int(v))
        ),
        "HPA, utilisation": (
            (0.9, 0.8, 0.7, 0.6, 0.5, 0.4), lambda v: lambda load, starts: rivals.Hpa(v)
        ),
        "HPA, concurrency": (
            (1.0, 0.8, 0.6, 0.5), lambda v: lambda load, starts: rivals.Hpa(v, True)
        ),
        "KPA": ((0.9, 0.8, 0.7, 0.6, 0.5, 0.4), lambda v: lambda load, starts: rivals.Kpa(v)),
        "KPA, delay 60 s": (
            (0.9, 0.8, 0.7, 0.6, 0.5), lambda v: lambda load, starts: rivals.Kpa(v, 60.0)
        ),
        RAY_DEFAULT: ((2.0, 1.5, 1.0, 0.8, 0.6), lambda v: lambda load, starts: _ray(False, v)),
        RAY_TUNED: ((1.0, 0.8, 0.65, 0.5, 0.4), lambda v: lambda load, starts: _ray(True, v)),
        "Ray Serve, tuned, 60 s": (
            (0.9, 0.7, 0.6, 0.5), lambda v: lambda load, starts: _ray(True, v, 60.0)
        ),
    }  # fmt: skip
    return [
        Setting(side, value, make(value))
        for side, (values, make) in swept.items()
        for value in values
    ]


def clairvoyant_settings() -> list[Setting]:
    def make(share: float) -> Make:
        return lambda load, starts: rivals.Clairvoyant(load, starts.median_s, share)

    return [Setting(CLAIRVOYANT, share, make(share)) for share in (1.0, 0.95, 0.9)]


def our_settings(knees: Iterable[float]) -> list[Setting]:
    """Above the default knee also sized for a lower percentile, or fewer replicas would not do."""

    def make(knee: float) -> Make:
        policy = PolicySettings(knee=knee)
        percentile = 0.99 if knee <= PolicySettings().knee else 0.9
        return lambda load, starts: Headrace(load, starts, policy, percentile)

    return [Setting(OURS, knee, make(knee)) for knee in knees]


def measured(trace: str, load: Load, setting: Setting, starts: Starts, seed: int) -> Cell:
    hot = max(1, round(1.3 * load.cut(0.0, 60.0).busy))
    found: Played = play(load, setting.make(load, starts), starts, seed, hot)
    return Cell(
        trace, starts.median_s, setting.side, setting.value, seed, found.offered, found.missed,
        found.replica_h, found.changes, found.reversals,
    )  # fmt: skip


def pooled(trace: str, loads: Sequence[Load], size: int, starts: Starts, pool: Starts) -> Cell:
    """Our policy for as many models as there are loads beside one pool; hours are a model's share,
    the whole pool among them."""
    policies = [Headrace(load, starts) for load in loads]
    found, replica_h = play_shared(loads, policies, size, pool, starts)
    return Cell(
        trace, starts.median_s, POOLED, size, 0, sum(each.offered for each in found),
        sum(each.missed for each in found), replica_h / len(loads),
    )  # fmt: skip


class Kept:
    """Cells in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.cells: dict[tuple[str, float, str, float, int], Cell] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                cell = Cell(**json.loads(line))
                self.cells[cell.key] = cell

    def add(self, cell: Cell) -> None:
        self.cells[cell.key] = cell
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as stream:
            stream.write(json.dumps(asdict(cell)) + "\n")
