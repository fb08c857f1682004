"""Bench: do callers notice while good and bad versions of a model are rolled out?

`python -m loadtests.benches.model_changes [--changes 27]`: two gateways and one model with
`REPLICAS` replicas, which run one request at a time. An open loop sends `LOAD` of their capacity
while versions change as in `loadtests.benches.changing_model`.

Promises: no request fails or is answered wrongly; every good version is promoted and no bad one.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path

from loadtests.benches.changing_model import (
    MODEL,
    Callers,
    KindOfChange,
    MadeChange,
    by_kind,
    change,
    table_of_changes,
    undecided,
    version,
    write_rubbish,
)
from loadtests.benches.launched import RunningServer
from loadtests.benches.request_log import LoggedRequest
from loadtests.benches.runner import Bench, BenchRun, Option, Options, Runs, say
from loadtests.benches.server import SETTINGS_DIR, Settings, headrace
from loadtests.results.report_table import BenchVerdict, Table, at_most

HOME = Path("out/bench/changes")
PAUSE_S = 1.0


@dataclass(slots=True)
class Changes:
    """The result of a run."""

    made: list[MadeChange] = field(default_factory=list)
    asked: int = 0  # requests
    longest_s: float = 0.0  # longest answer while the model changed
    quiet_s: float = 0.0  # longest answer while it did not change
    failures: list[str] = field(default_factory=list)
    changed_until_s: float = 0.0

    def told(self, request: LoggedRequest) -> None:
        self.asked += 1
        if request.why:
            self.failures.append(request.why)
        if request.began_s < self.changed_until_s:
            self.longest_s = max(self.longest_s, request.took_s)
        else:
            self.quiet_s = max(self.quiet_s, request.took_s)

    @property
    def kinds(self) -> dict[str, KindOfChange]:
        return by_kind(self.made)


def settings() -> Settings:
    return {"models": {MODEL: version(0)}, "gateway": {"replicas": 2}}


def changes(number: int) -> Changes:
    found = Changes()
    write_rubbish()
    with headrace(settings(), name=MODEL, home=HOME) as running:
        asyncio.run(_under_load(running, found, number))
    return found


async def _under_load(running: RunningServer, found: Changes, number: int) -> None:
    callers = Callers(running.url, found.told)
    asking = asyncio.create_task(callers.run())
    file = SETTINGS_DIR / f"{MODEL}.yaml"
    for each in range(1, number + 1):
        await asyncio.sleep(PAUSE_S)
        found.changed_until_s = inf
        made = await asyncio.to_thread(change, running, each, file=file, home=HOME)
        found.changed_until_s = made.ended_s
        found.made.append(made)
        say(f"{each} of {number} changes ({made.kind}): "
            f"{len(found.failures)} of {found.asked} failed, "
            f"longest answer {found.longest_s:.2f} s")  # fmt: skip
    await asyncio.sleep(PAUSE_S)
    callers.stop()
    await asking


# ---- the report ---------------------------------------------------------------------------------


def runs(options: Options) -> Iterator[BenchRun]:
    yield BenchRun("changes", changes(options.changes))


def tables(done: Runs, options: Options) -> Iterator[Table]:
    (found,) = done.results
    yield table_of_changes(found.kinds)
    yield Table(
        "What callers noticed",
        ("requests", "failed or wrong", "longest answer while it changed s", "and else s"),
        ((found.asked, len(found.failures), found.longest_s, found.quiet_s),),
    )


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    (found,) = done.results
    yield at_most("requests that failed or were answered wrongly", len(found.failures), 0)
    yield at_most("good changes that were not made", undecided(found.made, good=True), 0)
    yield at_most("bad changes that were not taken back", undecided(found.made, good=False), 0)


BENCH = Bench(
    name="model_changes",
    about=__doc__,
    title="A model changed under load",
    options={"changes": Option(27)},
    measure=runs,
    tables=tables,
    bars=bars,
    record=asdict,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
