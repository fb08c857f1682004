"""A run over time: what was offered, answered in time, served and under way, by tenant.

One moment a second, or as many seconds as keep them at `MAX_MOMENTS`, so that memory does not grow
with the run. Only the measured time is kept.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

MAX_MOMENTS = 600


@dataclass(slots=True)
class Moment:
    """offered, in_slo: requests sent in it, and those of them that were answered in time. served_s:
    cost of what was answered in it. under_way: sent and not ended, at its end."""

    offered: Counter[str] = field(default_factory=Counter)
    in_slo: Counter[str] = field(default_factory=Counter)
    served_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    under_way: dict[str, int] = field(default_factory=dict)


class TimeSeries:
    """Times are seconds from the start of the run and ascend, but for `in_slo`'s."""

    def __init__(self, tenants: Iterable[str], begin_s: float, end_s: float) -> None:
        self.begin_s, self.end_s = begin_s, end_s
        self.every_s = max(1.0, (end_s - begin_s) / MAX_MOMENTS)
        self.moments: list[Moment] = []
        self._over = False
        self._under_way = Counter(dict.fromkeys(tenants, 0))

    @property
    def unfinished(self) -> int:
        """Requests that were sent and have not ended."""
        return sum(self._under_way.values())

    def covers(self, at_s: float) -> bool:
        return self.begin_s <= at_s < self.end_s

    def sent(self, tenant: str, at_s: float) -> None:
        moment = self._moment(at_s)
        self._under_way[tenant] += 1
        if moment is not None:
            moment.offered[tenant] += 1

    def ended(self, tenant: str, at_s: float, served_s: float) -> None:
        moment = self._moment(at_s)
        self._under_way[tenant] -= 1
        if moment is not None:
            moment.served_s[tenant] += served_s

    def in_slo(self, tenant: str, sent_s: float) -> None:
        moment = self._moment(sent_s)
        if moment is not None:
            moment.in_slo[tenant] += 1

    def finish(self) -> None:
        """Nothing more will come."""
        self._close()

    def _close(self) -> None:
        if self.moments and not self._over:
            self.moments[-1].under_way = dict(self._under_way)

    def _moment(self, at_s: float) -> Moment | None:
        """The one that holds a time, those before it made; None outside of the measured time."""
        if not self.covers(at_s):
            if at_s >= self.end_s:
                self._close()
                self._over = True
            return None
        place = int((at_s - self.begin_s) / self.every_s)
        while len(self.moments) <= place:
            self._close()
            self.moments.append(Moment())
        return self.moments[place]

    def as_json(self) -> dict[str, Any]:
        def column(name: str) -> dict[str, list[float]]:
            rows = [getattr(moment, name) for moment in self.moments]
            return {tenant: [row.get(tenant, 0) for row in rows] for tenant in self._under_way}

        return {
            "every_s": self.every_s,
            "offered": column("offered"),
            "in_slo": column("in_slo"),
            "served_s": {n: [round(x, 6) for x in c] for n, c in column("served_s").items()},
            "under_way": column("under_way"),
        }
