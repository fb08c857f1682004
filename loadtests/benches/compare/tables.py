"""Makes the tables and the picture that compare the rounds' results, and checks the promises.

Figures are medians over a system's rounds. A peak's interval is from the lowest rate that held to
the highest that failed. Figures in which a peer is better are shown too. The picture has goodput
over offered load: a system that answers all in time follows the diagonal, and the rest of its line
shows the effect of overload.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from math import isinf, isnan, log
from operator import attrgetter

from loadtests.benches.compare.rounds import (
    HALF,
    MULTIPLES,
    SAME,
    TIMEOUT_S,
    VICTIM,
    LoadTrial,
    Round,
)
from loadtests.benches.compare.shares import COSTS_MS, NAMES, Kept, kept_of
from loadtests.benches.compare.systems import HEADRACE, WORKS, Workload, system_of
from loadtests.benches.runner import Column, Options, Runs, median, table
from loadtests.peers.options import DEVICE
from loadtests.report.plots import Axis, Point, Series, picture
from loadtests.report.scale import linear
from loadtests.results.report_table import (
    BenchVerdict,
    Cell,
    Picture,
    Table,
    at_least,
    median_of,
    number,
    ratio,
)

SORTED_DEVICE = 980.0
MIN_TIMES = 2.3
MIN_OF_SORTED = 0.8
MIN_OF_PEAK = 0.95
MIN_OF_SHARE = 0.8
JUDGED = ("1.5", "3")
AHEAD = (  # the columns in which Headrace should be the lowest
    ("p50 at half its peak", HALF, "p50_ms"),
    ("p99 at half its peak", HALF, "p99_ms"),
    ("CPU a request", HALF, "cpu_ms"),
    ("the victim's p99", VICTIM, "p99_ms"),
)
ALIKE = log(1.08)  # rates that differ by less are one point of the picture
PERFECT = "all of it in time"


def rounds_of(done: Runs, work: Workload) -> dict[str, Runs]:
    """The rounds by system: Headrace first, then by peak."""
    names = {run.side for run in done if run.case == work.name and isinstance(run.result, Round)}
    found = {name: done.of(name, work.name) for name in sorted(names)}
    order = sorted(found, key=lambda name: (name != HEADRACE, -peak(found[name])))
    return {name: found[name] for name in order}


def peak(mine: Runs) -> float:
    return mine.median("holds")


def trials(mine: Runs, which: str) -> list[LoadTrial]:
    return [trial for each in mine.results if (trial := each.trial(which))]


def figure(mine: Runs, which: str, name: str) -> float:
    return median_of(trials(mine, which), attrgetter(name))


# ---- tables --------------------------------------------------------------------------------------


def at(which: str, name: str) -> Callable[[Runs], Cell]:
    """A column of one of a round's trials. Callers give up after a while, so longer latencies are
    shown as a bound."""

    def cell(mine: Runs) -> Cell:
        value = figure(mine, which, name)
        late = name.startswith("p") and value >= TIMEOUT_S * 1e3
        return f"≥ {number(TIMEOUT_S * 1e3)}" if late else value

    return cell


def interval(mine: Runs) -> str:
    least, most = min(each.holds for each in mine.results), max(e.fails for e in mine.results)
    return f"{number(least)}–{'?' if isinf(most) else number(most)}"


def in_overload(times: str) -> Column:
    def cell(mine: Runs) -> Cell:
        rate = figure(mine, times, "in_time_per_s")
        return f"{number(rate)} ({ratio(rate, peak(mine)):.0%})"

    return f"in time/s at {times} ×", cell


def in_time_of(times: str, edge: str) -> Column:
    def cell(mine: Runs) -> Cell:
        counts = [trial.by_length[edge] for trial in trials(mine, times)]
        return f"{median_of(counts, lambda count: ratio(count[1], count[0])):.0%}"

    return f"{NAMES[edge]} at {times} ×", cell


def goodput_columns(work: Workload) -> tuple[Column, ...]:
    return (
        ("batch", lambda mine: system_of(mine[0].side, work).batch),
        ("goodput/s", median("holds")),
        ("interval", interval),
        ("Headrace is ×", lambda mine: ratio(peak(mine.beside(HEADRACE)), peak(mine))),
        ("p50 ms", at(HALF, "p50_ms")),
        ("p99 ms", at(HALF, "p99_ms")),
        ("CPU ms/req", at(HALF, "cpu_ms")),
        ("victim p99 ms", at(VICTIM, "p99_ms")),
        *(in_overload(f"{times:g}") for times in MULTIPLES),
    )


SAME_COLUMNS: tuple[Column, ...] = (
    ("in time", lambda mine: f"{figure(mine, SAME, 'share'):.1%}"),
    ("p50 ms", at(SAME, "p50_ms")),
    ("p99 ms", at(SAME, "p99_ms")),
    ("CPU ms/req", at(SAME, "cpu_ms")),
)
LENGTH_COLUMNS = tuple(in_time_of(times, edge) for times in JUDGED for edge in NAMES)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    for work in WORKS.values():
        if rows := rounds_of(done, work):
            caption = f"{work.title}; SLO {work.slo_s * 1e3:g} ms at p99"
            yield table(caption, goodput_columns(work), rows, "system")
            yield table(f"All at {work.same_rate:g}/s", SAME_COLUMNS, rows, "system")
            caption = "In time by length, share of what was offered"
            yield table(caption, LENGTH_COLUMNS, rows, "system")
            if work.name == DEVICE and HEADRACE in rows:
                yield fairness_table(rows[HEADRACE])
            tuned = tuple((name, system_of(name, work).tuning) for name in rows)
            yield Table("How each was tuned", ("system", "settings"), tuned)


def fairness_table(mine: Runs) -> Table:
    headers = ("load", "tokens", "device asked for", "served in time", "fair", "of its fair share")
    rows = []
    for times in (f"{multiple:g}" for multiple in MULTIPLES):
        for classes in zip(*map(kept_shares, trials(mine, times)), strict=True):
            shares = (median_of(classes, attrgetter(name)) for name in ("asked", "served", "fair"))
            rows.append((f"{times} ×", *Kept(classes[0].name, *shares).cells()))
    return Table("Headrace in overload: the device's time by length", headers, tuple(rows))


def kept_shares(trial: LoadTrial) -> list[Kept]:
    """Shares of the device's time by length class."""
    counts = trial.by_length
    asked = {edge: n * COSTS_MS[edge] / 1e3 / trial.seconds for edge, (n, _) in counts.items()}
    return kept_of(asked, {edge: kept / n if n else 1.0 for edge, (n, kept) in counts.items()})


# ---- promises ------------------------------------------------------------------------------------


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    for work in WORKS.values():
        rows = rounds_of(done, work)
        mine = rows.pop(HEADRACE, None)
        if mine and rows:
            yield from _bars(work, mine, rows)


def _bars(work: Workload, mine: Runs, peers: dict[str, Runs]) -> Iterator[BenchVerdict]:
    best = next(iter(peers))
    times = ratio(peak(mine), peak(peers[best]))
    if work.name != DEVICE:
        yield at_least(f"{work.name}: goodput above the best peer's ({best})", times, 1.0, " ×")
        return
    yield at_least(f"goodput at least 2.3 × the best peer's ({best})", times, MIN_TIMES, " ×")
    claim = "at least 80 % of the sorted device's 980/s"
    yield at_least(claim, peak(mine) / SORTED_DEVICE, MIN_OF_SORTED)
    for times_peak in JUDGED:
        share = ratio(figure(mine, times_peak, "in_time_per_s"), peak(mine))
        claim = f"at {times_peak} × its peak at least 95 % of it in time"
        yield at_least(claim, share, MIN_OF_PEAK)
    for what, which, name in AHEAD:
        theirs = {peer: figure(runs, which, name) for peer, runs in peers.items()}
        known = {peer: value for peer, value in theirs.items() if not isnan(value)} or theirs
        lowest, ours = min(known, key=lambda peer: known[peer]), figure(mine, which, name)
        said = f"{number(ours)} against {number(known[lowest])} ms ({lowest})"
        yield BenchVerdict(f"{what} below every peer's", said, ours < known[lowest])
    parts = [k.part for times in JUDGED for t in trials(mine, times) for k in kept_shares(t)]
    least = min(parts, default=float("nan"))
    yield at_least("each length at least 80 % of its fair share", least, MIN_OF_SHARE)


# ---- notes and the picture -----------------------------------------------------------------------


def notes(done: Runs, options: Options) -> Iterator[str]:
    rounds = [run.result for run in done if isinstance(run.result, Round)]
    counts = {each.system: 0 for each in rounds}
    for each in rounds:
        counts[each.system] += 1
    late_ms = max((each.half.lag_p99_ms for each in rounds), default=0.0)
    yield (
        f"Rounds: {', '.join(f'{name} {n}' for name, n in counts.items())}. Goodput is the highest "
        "rate at which 99 % of what was offered was answered in time; its interval is over all "
        "rounds. Latencies and CPU (of all of the server's processes) are at half of each one's "
        "own peak. A request without an answer counts as the second that its caller waited. The "
        "victim of the device sends 98/s of the mix (a tenth of the device) beside a tenant that "
        "floods with rows of 256-512 at ten times that; only Headrace is told who is who. This "
        f"client sent at most {number(late_ms)} ms late at p99 there."
    )
    yield from (run.result for run in done if isinstance(run.result, str))


def pictures(done: Runs) -> Iterator[Picture]:
    for work in WORKS.values():
        if rows := rounds_of(done, work):
            yield cliff(rows, work)


def cliff(rows: dict[str, Runs], work: Workload) -> Picture:
    series = [Series(name, points_of(mine.results)) for name, mine in rows.items()]
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
    """A system's points, by rate: from the search, from half of the peak and from its multiples.
    Trials at about the same rate are one point, their median."""
    alike: dict[int, list[Point]] = defaultdict(list)
    for each in rounds:
        tried = [each.half, each.same, *each.over.values()]
        for rate, share in (*each.searched, *((trial.rate, trial.share) for trial in tried)):
            alike[round(log(rate) / ALIKE)].append((rate, rate * share))
    return [
        (statistics.median(x for x, _ in points), statistics.median(y for _, y in points))
        for _, points in sorted(alike.items())
    ]
