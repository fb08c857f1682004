"""Bench: how does Headrace compare with other servers, on the same work and with the same client?

`python -m loadtests.benches.compare`: runs all kinds of work on all systems, which take turns. See
`rounds` for what is measured and `tables` for the promises. Takes about twenty-five minutes for the
device, and nothing else should use the machine meanwhile. Every round is written to
`out/bench/compare`. If the run is interrupted, it reports the rounds so far; `--report-only` does
so again. A system that does not start is left out with a message.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from subprocess import SubprocessError

from loadtests.benches.compare import rounds as keeping
from loadtests.benches.compare.rounds import MULTIPLES, Effort, Round, round_of
from loadtests.benches.compare.systems import HEADRACE, system_of
from loadtests.benches.compare.tables import report
from loadtests.benches.compare.works import WORKS, Workload
from loadtests.benches.launched import ServerTrouble
from loadtests.peers.options import DEVICE, MINILM
from loadtests.results.report_table import publish

DEFAULT = {
    DEVICE: (
        "ray-serve-raised",
        "ray-serve-throughput",
        "litserve",
        "bentoml",
        "mlserver",
        "triton",
    ),
    MINILM: ("ray-serve-throughput", "litserve", "bentoml", "mlserver", "triton", "infinity"),
}


def measured(asked: argparse.Namespace, notes: list[str]) -> Iterator[Round]:
    effort = Effort(asked.seconds, tuple(asked.multiples))
    for work in (WORKS[name] for name in asked.works):
        systems = list(asked.systems or [HEADRACE, *DEFAULT[work.name]])
        done: list[Round] = []
        for number in range(asked.repeats):
            for name in list(systems if number % 2 == 0 else reversed(systems)):
                try:
                    found = one(name, work, number, done, effort)
                except (ServerTrouble, SubprocessError, OSError, KeyError) as trouble:
                    systems.remove(name)
                    notes.append(f"`{name}` was left out of `{work.name}`: {said(trouble)}.")
                    print(f"{name}: {trouble}", file=sys.stderr)
                    continue
                done.append(found)
                yield found


def one(name: str, work: Workload, number: int, done: list[Round], effort: Effort) -> Round:
    before = [each for each in done if each.system == name]
    print(f"round {number + 1}, {work.name}: {name}", file=sys.stderr)
    found = round_of(system_of(name, work), work, number, before, effort)
    keeping.keep(found)
    return found


def said(trouble: Exception) -> str:
    return str(trouble).strip().splitlines()[-1][:200] if str(trouble).strip() else repr(trouble)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.benches.compare", description=__doc__
    )
    parser.add_argument("--systems", nargs="+", metavar="NAME[@BATCH]")
    parser.add_argument("--works", nargs="+", choices=WORKS, default=[DEVICE])
    parser.add_argument("--seconds", type=float, default=5.0, help="a trial (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--multiples", nargs="*", type=float, default=list(MULTIPLES))
    parser.add_argument("--quick", action="store_true", help="one round of trials of 4 s")
    parser.add_argument("--report-only", action="store_true", help="of the rounds that are kept")
    return parser


def main(argv: list[str] | None = None) -> int:
    asked = arguments().parse_args(argv)
    if asked.quick:
        asked.repeats, asked.seconds = 1, 4.0
    notes: list[str] = []
    if not asked.report_only:
        keeping.forget(asked.works)
        try:
            for _ in measured(asked, notes):
                pass
        except KeyboardInterrupt:
            notes.append("The run was interrupted.")
    return publish(report(keeping.kept(), notes), argv)


if __name__ == "__main__":
    sys.exit(main())
