"""The simulator beside a real server: the same scenario on both.

Arrivals, lengths and retries are the same ones; the simulated side is `headrace simulate --json` as
a process of its own. What HTTP and the way to a replica take on this machine it cannot know:
`--set network_ms=` and `transport_ms=` tell it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtests.results.record import Record, TenantLengthStats
from loadtests.results.report_table import Cell, Table
from loadtests.run import PreparedRun

PERCENTS = (50, 90, 99)


class NotSimulated(ValueError):
    """The simulator refused the scenario; says why."""


def command_line() -> list[str]:
    """The installed `headrace`, or the same entry point if it is not installed."""
    installed = Path(sys.executable).with_name("headrace")
    if installed.exists():
        return [str(installed)]
    return [sys.executable, "-c", "from deployments.cli import main; main(prog_name='headrace')"]


def simulate(path: Path, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """What `headrace simulate --json` prints. Raises NotSimulated."""
    command = [*command_line(), "simulate", str(path), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip()[-2000:]
        raise NotSimulated(said or f"headrace simulate exited {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def simulated(ready: PreparedRun) -> dict[str, Any]:
    """Raises NotSimulated."""
    changes = [part for each in ready.options.changes for part in ("--set", each)]
    trace = ["--trace", str(ready.options.trace)] if ready.options.trace else []
    return simulate(ready.options.scenario, [*changes, *trace])


def side_by_side(record: Record, found: Mapping[str, Any]) -> list[Table]:
    """All of it, then each tenant."""
    tables = [_table("All", record.total(), found)]
    by_tenant = record.by_tenant()
    if len(by_tenant) > 1:
        tables += [_table(n, cell, found["tenants"][n]) for n, cell in by_tenant.items()]
    return tables


def _table(name: str, cell: TenantLengthStats, found: Mapping[str, Any]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        ("offered", cell.offered, found["offered"], _off(cell.offered, found["offered"])),
        ("in time, %", _share(cell), found["in_slo"] * 100, ""),
        ("rejected", cell.rejected, found["rejected"], ""),
    ]
    for percent in PERCENTS:
        real_s, said_ms = cell.latency.percentile_s(percent), found[f"p{percent}_ms"]
        real_ms = None if real_s is None else real_s * 1e3
        rows.append((f"p{percent}, ms", real_ms, said_ms, _off(real_ms, said_ms)))
    wait_s = cell.wait.percentile_s(99)
    wait_ms = None if wait_s is None else wait_s * 1e3
    rows.append(
        ("wait p99, ms", wait_ms, found["wait_p99_ms"], _off(wait_ms, found["wait_p99_ms"]))
    )
    return Table(name, ("", "played", "simulated", "simulated is off by"), tuple(rows))


def _share(cell: TenantLengthStats) -> float | None:
    return cell.in_slo / cell.offered * 100 if cell.offered else None


def _off(real: float | None, said: float | None) -> str:
    return f"{said / real - 1:+.1%}" if real and said is not None else ""
