"""Do the policies keep what they promise, on virtual time?

Each promise is a scenario of `loadtests/scenarios` run by `headrace simulate`, beside the run it is
compared with: first in, first out, the tenants alone, no hedging, a healthy pool. Everything is
decided by the scenarios' seeds; what is measured is the scheduling, not this machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from loadtests.results.report_table import (
    BenchReport,
    BenchVerdict,
    Cell,
    Table,
    at_least,
    at_most,
    publish,
)

SCENARIOS = Path("loadtests/scenarios")
RESOLUTION = 1.02  # percentiles come from histograms; two runs that are alike differ by so much
LONGEST = 1.5  # times the longest batch's service time
LIMIT_S = 3600
VICTIMS = ("one", "two", "three")
NO_HEDGE = ("settings.models.device.hedge.mode=off",)
RUNS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "flood": ("flood-of-long", ("--fifo",)),
    "aggressor": ("aggressor", ()),
    "alone": ("aggressor", ("--set", "tenants.aggressor.arrivals.rate=0")),
    "weights": ("weights-4-1", ()),
    "two gateways": ("two-gateways-skewed", ()),
    "sleeper": ("sleeper", ()),
    "overload 1.2": ("overload-2x", ("--set", "arrivals.rate=119")),
    "overload 2": ("overload-2x", ()),
    "overload 10": ("overload-10x", ()),
    "burst": ("burst", ()),
    "mix 0.8": ("ragged-mix", ("--set", "arrivals.rate=784")),
    "mix 1.2": ("ragged-mix", ("--set", "arrivals.rate=1176")),
    "mix 2": ("ragged-mix", ("--set", "arrivals.rate=1960")),
    "mix 10": ("ragged-mix", ("--set", "arrivals.rate=9800")),
    "hiccups": ("hiccups", ()),
    "hiccups, no hedges": ("hiccups", ("--set", *NO_HEDGE)),
    "hiccups, busy": ("hiccups-busy", ()),
    "hiccups, busy, no hedges": ("hiccups-busy", ("--set", *NO_HEDGE)),
    "slow replica": ("slow-replica", ()),
    "healthy pool": ("slow-replica", ("--set", "faults.slow=[]")),
    "chaos": ("chaos", ("--set", "duration_s=3600")),
}


def run(name: str) -> dict[str, Any]:
    scenario, more = RUNS[name]
    command = [
        sys.executable, "-m", "deployments.cli", "simulate", str(SCENARIOS / f"{scenario}.yaml"),
        "--json", *more,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    print(f"{name}: done", file=sys.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def flood_table(found: Mapping[str, Any]) -> Table:
    both = {"headrace": found["flood"], "first in, first out": found["flood"]["fifo"]}
    rows = tuple(
        (
            name,
            each["tenants"]["chat"]["wait_p99_ms"],
            each["longest_batch_ms"],
            *(100 * each["tenants"][who]["in_slo"] for who in ("chat", "documents")),
        )
        for name, each in both.items()
    )
    headers = ("", "chat: wait p99 ms", "longest batch ms", "chat in SLO %", "documents in SLO %")
    return Table("A flood of documents (90 % of the device), a chat (5 %)", headers, rows)


def tenants_table(found: Mapping[str, Any]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name in ("aggressor", "alone", "weights", "two gateways", "sleeper"):
        for tenant, each in found[name]["tenants"].items():
            if each["offered"]:
                rows.append(
                    (
                        name,
                        tenant,
                        each["offered"],
                        100 * each["in_slo"],
                        each["p50_ms"],
                        each["p99_ms"],
                        each["device_s"],
                        found[name]["jain"],
                    )
                )
    headers = (
        "scenario", "tenant", "offered", "in SLO %", "p50 ms", "p99 ms", "device s", "least Jain",
    )  # fmt: skip
    return Table("Tenants", headers, tuple(rows))


def overload_table(found: Mapping[str, Any]) -> Table:
    names = [name for name in RUNS if name.split()[0] in ("overload", "mix", "burst")]
    rows = tuple(
        (
            name, each["offered"] / each["seconds"], each["in_slo_per_s"], each["p99_ms"],
            each["rejected"], each["reasons"].get("expired", 0), each["retries"],
        )
        for name in names
        for each in (found[name],)
    )  # fmt: skip
    headers = ("scenario", "offered/s", "in SLO/s", "p99 ms", "rejected", "expired", "retries")
    caption = "Overload: `overload` and `burst` with callers that come again, `mix` without"
    return Table(caption, headers, rows)


def pool_table(found: Mapping[str, Any]) -> Table:
    names = [name for name in RUNS if name.startswith(("hiccups", "slow", "healthy", "chaos"))]
    rows = tuple(
        (
            name, each["offered"], 100 * each["in_slo"], each["p50_ms"], each["p99_ms"],
            100 * each["hedge_ratio"], 100 * each["extra_work"],
        )
        for name in names
        for each in (found[name],)
    )  # fmt: skip
    headers = (
        "scenario", "offered", "in SLO %", "p50 ms", "p99 ms", "hedged batches %", "extra work %",
    )  # fmt: skip
    return Table("Pools of eight replicas", headers, rows)


def fairness_verdicts(found: Mapping[str, Any]) -> list[BenchVerdict]:
    flood, aggressor, alone = found["flood"], found["aggressor"], found["alone"]
    chat_ms = flood["tenants"]["chat"]["wait_p99_ms"]
    longest_ms = aggressor["longest_batch_ms"]
    worst_ms = max(
        aggressor["tenants"][who]["p99_ms"] - alone["tenants"][who]["p99_ms"] for who in VICTIMS
    )
    verdicts = [
        at_most(
            f"flood: the chat's p99 wait at most {LONGEST} × the longest batch",
            chat_ms / flood["longest_batch_ms"], LONGEST, " ×",
        ),
        at_least("aggressor: Jain at least 0.98 in any 10 s", aggressor["jain"], 0.98),
        at_most(
            f"aggressor: victims' p99 at most {LONGEST} × the longest batch above theirs alone",
            worst_ms / longest_ms, LONGEST, " ×",
        ),
        at_least("sleeper: Jain at least 0.98 in any 10 s", found["sleeper"]["jain"], 0.98),
    ]  # fmt: skip
    for name in ("weights", "two gateways"):
        tenants = found[name]["tenants"]
        got = tenants["four"]["device_s"] / tenants["one"]["device_s"]
        verdicts.append(BenchVerdict(f"{name}: 4 to 1 within 5 %", f"{got:.3f}", 3.8 <= got <= 4.2))
    return verdicts


def overload_verdicts(found: Mapping[str, Any]) -> list[BenchVerdict]:
    verdicts = []
    for kind, loads in (("overload", ("1.2", "2", "10")), ("mix", ("0.8", "1.2", "2", "10"))):
        best = max(found[f"{kind} {load}"]["in_slo_per_s"] for load in loads)
        for load in ("2", "10"):
            kept = found[f"{kind} {load}"]["in_slo_per_s"] / best
            claim = f"{kind}, {load} times capacity: at least 95 % of the best rate in SLO"
            verdicts.append(at_least(claim, 100 * kept, 95, " %"))
    return verdicts


def pool_verdicts(found: Mapping[str, Any]) -> list[BenchVerdict]:
    hedged, plain = found["hiccups"], found["hiccups, no hedges"]
    busy, busy_plain = found["hiccups, busy"], found["hiccups, busy, no hedges"]
    slow, healthy = found["slow replica"], found["healthy pool"]
    return [
        at_most("hiccups: p99 at most half", hedged["p99_ms"] / plain["p99_ms"], 0.5, " ×"),
        at_most("hiccups: at most 5 % extra work", 100 * hedged["extra_work"], 5, " %"),
        at_most(
            "hiccups, busy: p99 no worse than without hedging",
            busy["p99_ms"] / busy_plain["p99_ms"], RESOLUTION, " ×",
        ),
        at_most(
            "one of eight replicas five times slower: p99 at most 1.3 × the healthy pool's",
            slow["p99_ms"] / healthy["p99_ms"], 1.3, " ×",
        ),
    ]  # fmt: skip


def end_verdicts(found: Mapping[str, Any]) -> list[BenchVerdict]:
    """The burst ends 30 s into the measured time; what is left over when all has ended is a bug."""
    time_series, chaos = found["burst"]["time_series"], found["chaos"]
    offered, in_slo = (sum(time_series[key]["default"][40:]) for key in ("offered", "in_slo"))
    left = chaos["left_over"]
    return [
        at_least("burst: in SLO again 10 s after it", 100 * in_slo / max(1, offered), 95, " %"),
        BenchVerdict(
            "chaos: an hour, nothing left over, no drift", str(left), not any(left.values())
        ),
    ]


def _without_course(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in ("time_series", "fifo")}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.benches.policies")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    asked = parser.parse_args(argv)
    with ThreadPoolExecutor(asked.workers) as pool:
        found = dict(zip(RUNS, pool.map(run, RUNS), strict=True))
    tables = (flood_table, tenants_table, overload_table, pool_table)
    report = BenchReport(
        name="policies",
        title="What the policies promise, on virtual time",
        tables=tuple(table(found) for table in tables),
        verdicts=tuple(
            fairness_verdicts(found)
            + overload_verdicts(found)
            + pool_verdicts(found)
            + end_verdicts(found)
        ),
        notes=(
            "Percentiles are of answered requests; shares in SLO of all that were offered.",
            "`chaos` is an hour of replicas that die, hang, hiccup and start slowly under two "
            "gateways; a run fails if a request ends twice or never, or a lease is left over.",
        ),
        raw={name: _without_course(each) for name, each in found.items()},
    )
    return publish(report, argv)


if __name__ == "__main__":
    sys.exit(main())
