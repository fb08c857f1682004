"""The rules of the MLPerf Inference scenarios: whether a run keeps them, and its figure.

Server: queries come at Poisson times, 99 % of them within a bound. SingleStream: one query after
the other; the figure is the 90th percentile of latency. MultiStream: queries of eight samples, one
after the other; the 99th percentile. Offline: samples a second, as many as the system can do. Early
stopping decides how many queries are enough: n queries with t too late show the percentile with
99 % confidence if P(Binomial(n, 1 - percentile) <= t) <= 0.01.

It is not MLPerf: nobody submits this, and the data set and duration are the scenario's (MLPerf's
duration is ten minutes). Source: MLCommons, "MLPerf Inference Rules" and its appendix "Early
Stopping Criterion" (tolerance 0); loadgen's early_stopping.cc.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, islice, takewhile
from math import exp, inf, lgamma, log

from loadtests.results.latency_histogram import LatencyHistogram
from loadtests.results.record import Record
from loadtests.traffic.scenario import Scenario
from loadtests.traffic.scenario_file import check

CONFIDENCE = 0.99
SAMPLES_A_QUERY = 8
MIN_OFFLINE_SAMPLES = 24_576
Check = tuple[str, str, bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """`percentile`: 0..1, None where latency does not matter. `rows`: samples in each query."""

    percentile: float | None
    rows: int = 1


RULES: Mapping[str, Rule] = {
    "server": Rule(0.99),
    "offline": Rule(None),
    "single-stream": Rule(0.90),
    "multi-stream": Rule(0.99, SAMPLES_A_QUERY),
}


def chance(queries: int, late: int, percentile: float) -> float:
    """That at most so many of the queries are late, if each is so with 1 - percentile."""
    return sum(islice(_exactly(queries, percentile), late + 1))


def _exactly(queries: int, percentile: float) -> Iterator[float]:
    """The same of exactly 0, 1, 2, … of them."""
    on_time, late_log = log(percentile), log(1.0 - percentile)
    whole = lgamma(queries + 1)
    for k in range(queries + 1):
        ways = whole - lgamma(k + 1) - lgamma(queries - k + 1)
        yield exp(ways + k * late_log + (queries - k) * on_time)


def min_queries(late: int, percentile: float, confidence: float = CONFIDENCE) -> int:
    """How many queries it takes, late ones included, for so many late ones to be few enough."""
    low, high = late, max(1, 2 * late)  # low never suffices
    while chance(high, late, percentile) > 1.0 - confidence:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if chance(middle, late, percentile) > 1.0 - confidence:
            low = middle
        else:
            high = middle
    return high


def most_late(queries: int, percentile: float) -> int:
    """How many of the queries may be late; 0 where not even one may."""
    at_most = accumulate(_exactly(queries, percentile))
    few = takewhile(lambda chance: chance <= 1.0 - CONFIDENCE, at_most)
    return max(sum(1 for _ in few) - 1, 0)


def estimate_s(latency: LatencyHistogram, percentile: float) -> float | None:
    """A percentile that holds with confidence; None of too few queries."""
    # The n-th highest latency, n being the most that may be late. So a 90th percentile needs at
    # least 64 queries, and a 99th at least 662.
    rank = most_late(latency.total, percentile)
    return nth_highest_s(latency, rank) if rank else None


def nth_highest_s(latency: LatencyHistogram, rank: int) -> float:
    """The highest is the first."""
    if rank == 1:
        return latency.max_s
    below = latency.total - rank + 1
    found = latency.percentile_s((below - 0.5) / latency.total * 100.0)
    return inf if found is None else found


def scenario_of(kind: str, base: Scenario, rate: float, clients: int) -> Scenario:
    """MLPerf's load with the lengths of a scenario. `rate`: of Server; `clients`: how many queries
    keep an Offline system busy, since HTTP has no one call for all samples. Raises
    ScenarioErrors."""
    _, tenant = next(base.callers())
    closed = {"process": "closed", "clients": clients if kind == "offline" else 1}
    output = base.output_of(tenant)
    return check(
        {
            "settings": base.settings,
            "model": base.model,
            "about": f"MLPerf's {kind} scenario with the lengths of: {base.about}",
            "seed": base.seed,
            "duration_s": base.duration_s,
            "warmup_s": base.warmup_s,
            "arrivals": {"rate": rate} if kind == "server" else closed,
            "lengths": base.lengths_of(tenant).model_dump(exclude_defaults=True),
            "output": None if output is None else output.model_dump(exclude_defaults=True),
            "tenants": {"default": {"rows": RULES[kind].rows}},
        }
    )


def checks(kind: str, record: Record, bound_s: float | None) -> list[Check]:
    """What the rules ask, what was measured, whether it held. Answers that never came are late."""
    total, rule = record.total(), RULES[kind]
    missing = total.offered - total.latency.total
    if rule.percentile is None:
        rate = total.latency.total * rule.rows / record.seconds if record.seconds else 0.0
        least = f"at least {MIN_OFFLINE_SAMPLES:,} samples, all answered"
        enough = total.latency.total >= MIN_OFFLINE_SAMPLES and not missing
        return [(least, f"{total.latency.total:,} samples, {rate:,.1f}/s", enough)]
    if kind == "server":
        return [_server(total.offered, total.in_slo, rule.percentile, bound_s)]
    found_s = None if missing else estimate_s(total.latency, rule.percentile)
    said = "too few queries, or unanswered ones" if found_s is None else f"{found_s * 1e3:.2f} ms"
    least = f"{min_queries(1, rule.percentile):,}"
    name = f"p{rule.percentile * 100:.0f} by early stopping, at least {least} queries, all answered"
    return [(name, f"{said} of {total.offered:,} queries", found_s is not None)]


def _server(offered: int, in_time: int, percentile: float, bound_s: float | None) -> Check:
    late = offered - in_time
    needed = min_queries(late, percentile)
    bound = "no bound" if bound_s is None else f"{bound_s * 1e3:g} ms"
    return (
        f"p{percentile * 100:.0f} within {bound}, by early stopping",
        f"{late:,} of {offered:,} queries late; that takes at least {needed:,} queries",
        bound_s is not None and offered >= needed,
    )
