"""Whether a server's memory grows, where some of its processes are replaced now and then.

Two figures of samples of a `SoakWatch`, a warm-up left out: processes that lived throughout, each
by the slope of a straight line; and all together, by the median of the beginning and of the end.
Processes that were replaced are compared with their successors at the same age.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from loadtests.benches.soak_watch import MIB, SoakSample, growth_mib_per_hour

RAYS = ("gcs", "raylet", "dashboard", "ray's monitors", "proxy", "idle worker")
AGE_S = 60.0
_EDGE = 10  # the first and the last tenth of what counts


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """Of a process, or of all: MiB after the warm-up, share that it has grown by until the end."""

    name: str
    began_mib: float
    share: float

    @property
    def role(self) -> str:
        return self.name.rpartition(" ")[0]


def lived(samples: Sequence[SoakSample]) -> list[MemoryGrowth]:
    """Processes of the whole last two thirds."""
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
    """The server's resident memory."""
    late = [sum(each.rss_bytes.values()) / MIB for each in samples[len(samples) // 3 :]]
    edge = max(1, len(late) // _EDGE)
    began, ended = median(late[:edge]), median(late[-edge:])
    return MemoryGrowth("all", began, ended / began - 1)


def at_same_age(samples: Sequence[SoakSample]) -> dict[str, list[float]]:
    """By role: MiB of each process when it had been seen for AGE_S, in the order of their births;
    of those that were born later than the first sample."""
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
