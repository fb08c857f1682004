"""Bench: how does Headrace compare with other servers, on the same work and with the same client?

`python -m loadtests.benches.compare`: runs all kinds of work on all systems, which take turns. See
`rounds` for what is measured and `tables` for the promises. Takes about twenty-five minutes for the
device, and nothing else should use the machine meanwhile. Every round is written to
`out/bench/compare`. If the run is interrupted, it reports the rounds so far; `--report-only` does
so again. A system that does not start is left out with a message.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from subprocess import SubprocessError
from typing import Any

from loadtests.benches.compare.rounds import MULTIPLES, Round, forget, keep, kept, round_of
from loadtests.benches.compare.systems import HEADRACE, WORKS, Workload, system_of
from loadtests.benches.compare.tables import notes, pictures, tables, thresholds
from loadtests.benches.runner import Bench, BenchOption, BenchRun, Options, in_turn, say
from loadtests.benches.server import ServerTrouble
from loadtests.peers.options import DEVICE, MINILM

PEERS = ("ray-serve-throughput", "litserve", "bentoml", "mlserver", "triton")
DEFAULT = {DEVICE: ("ray-serve-raised", *PEERS), MINILM: PEERS}
QUICK_S = 4.0


def runs(options: Options) -> Iterator[BenchRun]:
    """Every round that is kept, and for each system that was left out a line that says why."""
    if not options.report_only:
        forget(options.works)
        try:
            for work in options.works:
                yield from measured(WORKS[work], options)
        except KeyboardInterrupt:
            yield BenchRun("", "The run was interrupted.")
    for each in kept():
        yield BenchRun(each.system, each, each.work)


def measured(work: Workload, options: Options) -> Iterator[BenchRun]:
    """Keeps each round; yields what was left out."""
    repeats, seconds = (1, QUICK_S) if options.quick else (options.repeats, options.seconds)
    systems = options.systems or [HEADRACE, *DEFAULT[work.name]]
    done: dict[str, list[Round]] = {name: [] for name in systems}
    for number, name in in_turn(systems, repeats):
        if name not in done:
            continue
        say(f"round {number + 1}, {work.name}: {name}")
        try:
            system = system_of(name, work)
            found = round_of(system, work, number, done[name], seconds, options.multiples)
        except (ServerTrouble, SubprocessError, OSError, KeyError) as trouble:
            del done[name]
            why = (str(trouble).strip() or repr(trouble)).splitlines()[-1][:200]
            say(f"{name}: {trouble}")
            yield BenchRun("", f"`{name}` was left out of `{work.name}`: {why}.")
        else:
            done[name].append(found)
            keep(found)


def record(found: Any) -> Any:
    return asdict(found) if isinstance(found, Round) else found


BENCH = Bench(
    name="compare",
    about=__doc__,
    title="Beside other servers",
    options={
        "systems": BenchOption(
            [], "the work's default ones, if none is given", metavar="NAME[@BATCH]"
        ),
        "works": BenchOption([DEVICE], choices=WORKS),
        "seconds": BenchOption(5.0, "a trial (%(default)s)"),
        "repeats": BenchOption(3),
        "multiples": BenchOption(list(MULTIPLES), "of a system's peak, for overload"),
        "quick": BenchOption(False, "one round of trials of 4 s"),
        "report_only": BenchOption(False, "of the rounds that are kept"),
    },
    measure=runs,
    tables=tables,
    thresholds=thresholds,
    notes=notes,
    record=record,
    pictures=pictures,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
