"""Makes the tables that compare the rounds' results, and checks the promises.

Figures are medians over a system's rounds. A peak's interval is from the lowest rate that held to
the highest that failed. Figures in which a peer is better are shown too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from math import inf, isinf

from loadtests.benches.compare.loads import TIMEOUT_S, LoadTrial
from loadtests.benches.compare.pictures import cliff
from loadtests.benches.compare.rounds import MULTIPLES, Round
from loadtests.benches.compare.shares import NAMES, kept_shares
from loadtests.benches.compare.systems import HEADRACE, system_of
from loadtests.benches.compare.works import WORKS, Workload
from loadtests.peers.options import DEVICE
from loadtests.results.report_table import (
    BenchReport,
    BenchVerdict,
    Cell,
    Picture,
    Table,
    at_least,
    number,
    ratio,
)

SORTED_DEVICE = 980.0
MIN_TIMES = 2.3
MIN_OF_SORTED = 0.8
MIN_OF_PEAK = 0.95
MIN_OF_SHARE = 0.8
JUDGED = ("1.5", "3")
HALF, SAME, VICTIM = "half", "same", "victim"


def names_of(rounds: Iterable[Round]) -> list[str]:
    """Names of the systems: Headrace first, then by peak."""
    mine = list(rounds)
    found = list(dict.fromkeys(each.system for each in mine))
    return sorted(found, key=lambda name: (name != HEADRACE, -peak_of(mine, name)))


def of(rounds: Iterable[Round], name: str) -> list[Round]:
    return [each for each in rounds if each.system == name]


def median(rounds: Iterable[Round], value: Callable[[Round], float]) -> float:
    found = [value(each) for each in rounds]
    return statistics.median(found) if found else float("nan")


def peak_of(rounds: Iterable[Round], name: str) -> float:
    return median(of(rounds, name), lambda each: each.holds)


def trial_of(name: str) -> Callable[[Round], LoadTrial | None]:
    """A function that returns a round's trial: `half`, `same`, `victim`, or a multiple of the
    peak."""

    def found(each: Round) -> LoadTrial | None:
        named = {HALF: each.half, SAME: each.same, VICTIM: each.victim}
        return named[name] if name in named else each.over.get(name)

    return found


def figure(
    rounds: Iterable[Round], name: str, which: str, what: Callable[[LoadTrial], float]
) -> float:
    trials = [trial_of(which)(each) for each in of(rounds, name)]
    return statistics.median([what(t) for t in trials if t] or [float("nan")])


# ---- tables --------------------------------------------------------------------------------------


def goodput_table(rounds: Sequence[Round], work: Workload) -> Table:
    """Peaks, latencies at half of the peaks, CPU time, and goodput in overload."""
    headers = (
        *("system", "batch", "goodput/s", "interval", "Headrace is ×", "p50 ms", "p99 ms"),
        *("CPU ms/req", "victim p99 ms", *(f"in time/s at {m:g} ×" for m in MULTIPLES)),
    )
    rows = []
    for name in names_of(rounds):
        system, ours = system_of(name, work), peak_of(rounds, HEADRACE)
        row: list[Cell] = [name, system.batch, peak_of(rounds, name), interval(of(rounds, name))]
        row.append(ratio(ours, peak_of(rounds, name)))
        row += [figure(rounds, name, HALF, what) for what in (p50_ms, p99_ms, cpu_ms)]
        row.append(capped(figure(rounds, name, VICTIM, p99_ms)))
        row += [in_overload(rounds, name, f"{times:g}") for times in MULTIPLES]
        rows.append(tuple(row))
    return Table(f"{work.title}; SLO {work.slo_s * 1e3:g} ms at p99", headers, tuple(rows))


def same_table(rounds: Sequence[Round], work: Workload) -> Table:
    """Results at the same rate for all systems, which is a different part of each one's peak."""
    rows = []
    for name in names_of(rounds):
        share = figure(rounds, name, SAME, lambda t: t.share)
        found = [figure(rounds, name, SAME, what) for what in (p50_ms, p99_ms, cpu_ms)]
        rows.append((name, f"{share:.1%}", capped(found[0]), capped(found[1]), found[2]))
    headers = ("system", "in time", "p50 ms", "p99 ms", "CPU ms/req")
    return Table(f"All at {work.same_rate:g}/s", headers, tuple(rows))


def p50_ms(trial: LoadTrial) -> float:
    return trial.p50_ms


def p99_ms(trial: LoadTrial) -> float:
    return trial.p99_ms


def cpu_ms(trial: LoadTrial) -> float:
    return trial.cpu_ms


def interval(rounds: Sequence[Round]) -> str:
    least, most = min(each.holds for each in rounds), max(each.fails for each in rounds)
    return f"{number(least)}–{'?' if isinf(most) else number(most)}"


def capped(milliseconds: float) -> Cell:
    """A latency as a cell; callers give up after a while, so longer ones are shown as a bound."""
    if milliseconds >= TIMEOUT_S * 1e3:
        return f"≥ {number(TIMEOUT_S * 1e3)}"
    return milliseconds


def in_overload(rounds: Sequence[Round], name: str, times: str) -> str:
    rate = figure(rounds, name, times, lambda t: t.in_time_per_s)
    return f"{number(rate)} ({ratio(rate, peak_of(rounds, name)):.0%})"


def length_table(rounds: Sequence[Round]) -> Table:
    """Shares by length in overload, which show whether long rows starve."""
    classes = list(NAMES)
    headers = ("system", *(f"{NAMES[edge]} at {t} ×" for t in JUDGED for edge in classes))
    rows = tuple(
        (name, *(share_in_time(rounds, name, t, edge) for t in JUDGED for edge in classes))
        for name in names_of(rounds)
    )
    return Table("In time by length, share of what was offered", headers, rows)


def share_in_time(rounds: Sequence[Round], name: str, times: str, edge: str) -> str:
    def share(trial: LoadTrial) -> float:
        offered, kept = trial.by_length[edge]
        return ratio(kept, offered)

    return f"{figure(rounds, name, times, share):.0%}"


def fairness_table(rounds: Sequence[Round]) -> Table:
    headers = ("load", "tokens", "device asked for", "served in time", "fair", "of its fair share")
    rows = []
    for times in (f"{m:g}" for m in MULTIPLES):
        for place, name in enumerate(NAMES.values()):
            values = [kept_shares(t)[place] for t in trials(rounds, HEADRACE, times)]
            if values:
                asked, served, fair, part = (
                    statistics.median([getattr(value, field) for value in values])
                    for field in ("asked", "served", "fair", "part")
                )
                row = (f"{asked:.1%}", f"{served:.1%}", f"{fair:.1%}", f"{part:.0%}")
                rows.append((f"{times} ×", name, *row))
    return Table("Headrace in overload: the device's time by length", headers, tuple(rows))


def trials(rounds: Sequence[Round], name: str, which: str) -> list[LoadTrial]:
    return [trial for each in of(rounds, name) if (trial := trial_of(which)(each))]


def tuning_table(rounds: Sequence[Round], work: Workload) -> Table:
    rows = tuple((name, system_of(name, work).tuning) for name in names_of(rounds))
    return Table("How each was tuned", ("system", "settings"), rows)


# ---- promises ------------------------------------------------------------------------------------


def verdicts(rounds: Sequence[Round], work: Workload) -> list[BenchVerdict]:
    peers = [name for name in names_of(rounds) if name != HEADRACE]
    if not of(rounds, HEADRACE) or not peers:
        return []
    ours, best = peak_of(rounds, HEADRACE), max(peers, key=lambda name: peak_of(rounds, name))
    times = ratio(ours, peak_of(rounds, best))
    about = "" if work.name == DEVICE else f"{work.name}: "
    if work.name != DEVICE:
        return [at_least(f"{about}goodput above the best peer's ({best})", times, 1.0, " ×")]
    found = [
        at_least(f"goodput at least 2.3 × the best peer's ({best})", times, MIN_TIMES, " ×"),
        at_least("at least 80 % of the sorted device's 980/s", ours / SORTED_DEVICE, MIN_OF_SORTED),
    ]
    found += [at_peak(rounds, multiple) for multiple in JUDGED]
    return [*found, *ahead(rounds, peers), fair(rounds)]


def at_peak(rounds: Sequence[Round], times: str) -> BenchVerdict:
    rate = figure(rounds, HEADRACE, times, lambda t: t.in_time_per_s)
    share = ratio(rate, peak_of(rounds, HEADRACE))
    return at_least(f"at {times} × its peak at least 95 % of it in time", share, MIN_OF_PEAK)


def ahead(rounds: Sequence[Round], peers: Sequence[str]) -> list[BenchVerdict]:
    """Whether Headrace is better than every peer in every column."""
    low: tuple[tuple[str, str, Callable[[LoadTrial], float]], ...] = (
        ("p50 at half its peak", HALF, p50_ms),
        ("p99 at half its peak", HALF, p99_ms),
        ("CPU a request", HALF, cpu_ms),
        ("the victim's p99", VICTIM, p99_ms),
    )
    found = []
    for what, which, value in low:
        ours = figure(rounds, HEADRACE, which, value)
        best = min(peers, key=lambda name: lower(figure(rounds, name, which, value)))
        theirs = figure(rounds, best, which, value)
        said = f"{number(ours)} against {number(theirs)} ms ({best})"
        found.append(BenchVerdict(f"{what} below every peer's", said, ours < theirs))
    return found


def lower(value: float) -> float:
    return inf if value != value else value


def fair(rounds: Sequence[Round]) -> BenchVerdict:
    parts = [
        share.part
        for times in JUDGED
        for trial in trials(rounds, HEADRACE, times)
        for share in kept_shares(trial)
    ]
    least = min(parts, default=float("nan"))
    return at_least("each length at least 80 % of its fair share", least, MIN_OF_SHARE)


# ---- the report ----------------------------------------------------------------------------------


def report(rounds: Sequence[Round], notes: Sequence[str] = ()) -> BenchReport:
    tables: list[Table] = []
    pictures: list[Picture] = []
    judged: list[BenchVerdict] = []
    for work in WORKS.values():
        mine = [each for each in rounds if each.work == work.name]
        if not mine:
            continue
        tables += [goodput_table(mine, work), same_table(mine, work), length_table(mine)]
        pictures.append(cliff(mine, names_of(mine), work))
        if work.name == DEVICE and of(mine, HEADRACE):
            tables.append(fairness_table(mine))
        tables.append(tuning_table(mine, work))
        judged += verdicts(mine, work)
    counts = {name: len(of(rounds, name)) for name in names_of(rounds)}
    late_ms = max((t.lag_p99_ms for each in rounds for t in (each.half,)), default=0.0)
    own = (
        f"Rounds: {', '.join(f'{name} {n}' for name, n in counts.items())}. Goodput is the highest "
        "rate at which 99 % of what was offered was answered in time; its interval is over all "
        "rounds. Latencies and CPU (of all of the server's processes) are at half of each one's "
        "own peak. A request without an answer counts as the second that its caller waited. The "
        "victim of the device sends 98/s of the mix (a tenth of the device) beside a tenant that "
        "floods with rows of 256-512 at ten times that; only Headrace is told who is who. This "
        f"client sent at most {number(late_ms)} ms late at p99 there.",
    )
    return BenchReport(
        name="compare",
        title="Beside other servers",
        tables=tuple(tables),
        verdicts=tuple(judged),
        notes=(*own, *notes),
        raw={"rounds": len(rounds)},
        pictures=tuple(pictures),
    )
