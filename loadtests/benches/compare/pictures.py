"""Draws goodput over offered load, a line for each system.

The x axis is the offered requests a second, the y axis those answered in time. A system that
answers all in time follows the diagonal; the peak is where its line leaves the diagonal, and the
rest of the line shows the effect of overload. Trials at about the same rate are one point, their
median.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import log

from loadtests.benches.compare.rounds import Round
from loadtests.benches.compare.works import Workload
from loadtests.report.plots import Axis, Point, Series, picture
from loadtests.report.scale import linear
from loadtests.results.report_table import Picture

SAME = log(1.08)  # rates that differ by less are one point
PERFECT = "all of it in time"


def cliff(rounds: Sequence[Round], names: Iterable[str], work: Workload) -> Picture:
    """The picture for one kind of work, with all systems that did it."""
    series = [Series(name, points_of([r for r in rounds if r.system == name])) for name in names]
    across = linear(x for each in series for x, _ in each.points)
    up = linear(y for each in series for _, y in each.points)
    end = min(across.high, up.high)
    series.append(Series(PERFECT, ((0.0, 0.0), (end, end))))
    title = f"{work.title[0].upper()}{work.title[1:]}, SLO {work.slo_s * 1e3:g} ms"
    x = Axis("offered, requests/s", across)
    y = Axis("answered in time, requests/s", up)
    caption = f"Answered in time of what was offered. {title}"
    return Picture(f"compare-{work.name}", caption, picture(title, series, x, y))


def points_of(rounds: Iterable[Round]) -> list[Point]:
    """A system's points, by rate: from the search, from half of the peak and from its multiples."""
    alike: dict[int, list[Point]] = defaultdict(list)
    for each in rounds:
        trials = [each.half, each.same, *each.over.values()]
        found = [*each.searched, *((trial.rate, trial.share) for trial in trials)]
        for rate, share in found:
            alike[round(log(rate) / SAME)].append((rate, rate * share))
    return [
        (statistics.median(x for x, _ in points), statistics.median(y for _, y in points))
        for _, points in sorted(alike.items())
    ]
