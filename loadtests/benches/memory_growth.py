"""Does a server's memory grow, if some of its processes are replaced during the run?

Computes figures from the samples of a `SoakWatch`, without the first third. Processes that lived
throughout are judged each by the slope of a straight line through its samples, all processes
together by the medians of the beginning and of the end. Processes that were replaced are compared
with their successors at the same age.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from loadtests.benches.soak_watch import MIB, SoakSample, growth_mib_per_hour

RAYS = ("gcs", "raylet", "dashboard", "ray's monitors", "proxy", "idle worker")
AGE_S = 60.0
_EDGE = 10  # beginning and end are the first and the last tenth of the samples that count


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """The growth of one process, or of all together."""

    name: str
    began_mib: float  # after the first third
    share: float  # growth until the end over `began_mib`

    @property
    def role(self) -> str:
        return self.name.rpartition(" ")[0]


def lived(samples: Sequence[SoakSample]) -> list[MemoryGrowth]:
    """Growth of each process that lived throughout the last two thirds."""
    late = samples[len(samples) // 3 :]
    if len(late) < 3:
        return []
    span_h = (late[-1].at_s - late[0].at_s) / 3600
    names = set(late[0].rss_bytes).intersection(late[-1].rss_bytes)
    return [
        MemoryGrowth(
            name,
            late[0].rss_bytes[name] / MIB,
            float(growth_mib_per_hour(samples, name) * span_h / (late[0].rss_bytes[name] / MIB)),
        )
        for name in sorted(names)
    ]


def whole(samples: Sequence[SoakSample]) -> MemoryGrowth:
    """Growth of the resident memory of all processes together."""
    late = [sum(each.rss_bytes.values()) / MIB for each in samples[len(samples) // 3 :]]
    edge = max(1, len(late) // _EDGE)
    began, ended = median(late[:edge]), median(late[-edge:])
    return MemoryGrowth("all", began, ended / began - 1)


def at_same_age(samples: Sequence[SoakSample]) -> dict[str, list[float]]:
    """By role: MiB of each process AGE_S after it first appeared, in the order of appearance.

    Only processes that started after the first sample count.
    """
    found: dict[str, list[float]] = defaultdict(list)
    born: dict[str, float] = {}
    seen = set[str]()
    for each in samples:
        for name, rss in each.rss_bytes.items():
            if each.at_s - born.setdefault(name, each.at_s) >= AGE_S and name not in seen:
                seen.add(name)
                if name not in samples[0].rss_bytes:
                    found[name.rpartition(" ")[0]].append(rss / MIB)
    return dict(found)
