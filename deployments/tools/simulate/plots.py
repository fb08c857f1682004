"""A simulated run as one HTML page: latencies, in time, under way and served, by tenant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from deployments.tools.simulate.scaling_record import ScalingRecord
from deployments.tools.simulate.simulation import SimulationResult
from loadtests.report import page
from loadtests.report.figures import TimeGrid, of_histograms, over
from loadtests.report.plots import Figure
from loadtests.results.summary import Summary
from loadtests.results.time_series import Moment


class NoPlots(RuntimeError):
    """The page cannot be written; says why."""


def must_be_there(path: Path) -> None:
    """Before a long run rather than after it. Raises NoPlots."""
    if path.suffix != ".html":
        raise NoPlots(f"{path}: must end in .html")
    if not path.absolute().parent.is_dir():
        raise NoPlots(f"{path}: its folder does not exist")


def write(result: SimulationResult, path: Path, title: str) -> None:
    every = [*figures(result.summary), *scaling_figures(result.scaling)]
    drawn = [page.figure(each) for each in every]
    parts = [page.header(title, "On virtual time.", {}), page.section("Pictures", drawn, "figures")]
    path.write_text(page.page(f"{title}: simulated", parts), encoding="utf-8")


def figures(summary: Summary) -> Iterator[Figure]:
    tenants, every_s = summary.tenants(), summary.time_series.every_s
    latencies = {name: group.latency for name, group in tenants.items()}
    answered = {name: each.total for name, each in latencies.items()}
    says = "Share of answered requests answered within so many milliseconds."
    yield of_histograms("Latencies", says, latencies, answered)
    if summary.time_series.moments:
        yield _over_time(summary, "In time", "Share of what was offered", _share)
        yield _over_time(
            summary, "Under way", "Sent and not ended", lambda m, name: m.under_way.get(name, 0)
        )
        yield _over_time(
            summary,
            "Served",
            "Device seconds a second",
            lambda moment, name: moment.served_s.get(name, 0.0) / every_s,
        )


def scaling_figures(scaling: ScalingRecord | None) -> Iterator[Figure]:
    """Replicas and demand, of a run in which they came and went."""
    if scaling is None or not scaling.moments:
        return
    moments, every_s = scaling.moments, scaling.every_s
    grid = TimeGrid([place * every_s for place in range(len(moments))], every_s)
    numbers = ("target", "hot", "starting", "draining", *(["pool_hot"] * bool(scaling.pool_s)))
    replicas = {name.replace("_", " "): [getattr(m, name) for m in moments] for name in numbers}
    yield over("Replicas", "Asked for, serving, starting and draining", grid, replicas)
    work = {name: [getattr(m, name) for m in moments] for name in ("offered", "planned")}
    yield over("Work", "Seconds of work a second: offered, and planned for", grid, work)


def _share(moment: Moment, name: str) -> float | None:
    offered = moment.offered.get(name, 0)
    return moment.in_slo.get(name, 0) / offered if offered else None


def _over_time(
    summary: Summary, title: str, says: str, value: Callable[[Moment, str], float | None]
) -> Figure:
    moments, every_s = summary.time_series.moments, summary.time_series.every_s
    grid = TimeGrid([place * every_s for place in range(len(moments))], every_s)
    values = {name: [value(each, name) for each in moments] for name in summary.tenants()}
    return over(title, says, grid, values)
