"""A simulated run as pictures: latencies, in time, under way and served, by tenant.

Needs matplotlib, which is not installed unless asked for (`pip install headrace[plots]`); the kind
of picture follows the file's suffix.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from loadtests.results.latency_histogram import LatencyHistogram
from loadtests.results.summary import Summary
from loadtests.results.time_series import Moment

KINDS = (".png", ".svg", ".pdf")


class NoPlots(RuntimeError):
    """The picture cannot be drawn; says what is missing."""


def must_be_there(path: Path) -> None:
    """Before a long run rather than after it. Raises NoPlots."""
    if path.suffix not in KINDS:
        raise NoPlots(f"{path}: must end in {', '.join(KINDS)}")
    if not path.absolute().parent.is_dir():
        raise NoPlots(f"{path}: its folder does not exist")
    if find_spec("matplotlib") is None:
        raise NoPlots("--plot needs matplotlib: pip install 'headrace[plots]'")


def draw(summary: Summary, path: Path, title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, ((latencies, in_time), (under_way, served)) = pyplot.subplots(2, 2, figsize=(12, 8))
    figure.suptitle(title.strip())
    _latencies(latencies, summary)
    _in_time(in_time, summary)
    _over_time(under_way, summary, "under way", lambda moment, name: moment.under_way.get(name, 0))
    every_s = summary.time_series.every_s
    _over_time(
        served, summary, "device seconds a second",
        lambda moment, name: moment.served_s.get(name, 0.0) / every_s,
    )  # fmt: skip
    for axes in (latencies, in_time, under_way, served):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _latencies(axes: Any, summary: Summary) -> None:
    for name, group in summary.tenants().items():
        points = list(_time_series(group.latency))
        axes.plot([ms for ms, _ in points], [share for _, share in points], label=name)
    axes.set(
        xscale="log", xlabel="latency of answered requests, ms", ylabel="share at most", ylim=(0, 1)
    )


def _time_series(histogram: LatencyHistogram) -> list[tuple[float, float]]:
    return [(seconds * 1e3, share) for seconds, share in histogram.cumulative()]


def _in_time(axes: Any, summary: Summary) -> None:
    def share(moment: Moment, name: str) -> float:
        offered = moment.offered.get(name, 0)
        return moment.in_slo.get(name, 0) / offered if offered else float("nan")

    _over_time(axes, summary, "share answered in time", share)
    axes.set(ylim=(0, 1.02))


def _over_time(axes: Any, summary: Summary, label: str, value: Any) -> None:
    time_series = summary.time_series
    times = [n * time_series.every_s for n in range(len(time_series.moments))]
    for name in summary.tenants():
        axes.plot(times, [value(moment, name) for moment in time_series.moments], label=name)
    axes.set(xlabel="s", ylabel=label)
