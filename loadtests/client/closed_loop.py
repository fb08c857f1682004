"""The closed loop: requests a second answered to N clients who each wait for their answer.

`python -m loadtests.client.closed_loop --url URL --clients 32 --seconds 10 --body FILE`: N
keep-alive connections, each sends its next request when the last is answered (closed loop). With
`--rate` the same connections carry Poisson arrivals instead and latencies count from the time a
request was meant to be sent (`open_loop`). Prints a table, or JSON. Costs at most 40 µs of CPU a
request, so that on a shared machine it measures the server rather than itself.

Source for the warning that a closed loop hides queueing: Schroeder et al., "Open Versus Closed".
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtests.client.connection import ClientConnection
from loadtests.client.http1 import Target, render
from loadtests.client.load import Call, Fleet, Load
from loadtests.client.mischief import Mischief, malformed_requests
from loadtests.client.open_loop import OpenLoop
from loadtests.client.tally import LoadResult


class ClosedLoop(Fleet):
    """Each free connection sends at once, until the run ends."""

    def ready(self, connection: ClientConnection) -> None:
        if not self.exhausted:
            self.send(connection)


async def run_async(load: Load) -> LoadResult:
    fleet: Fleet
    if load.rate:
        fleet = open_loop = OpenLoop(load)
        open_loop.start()
    else:
        fleet = ClosedLoop(load)
        for _ in range(load.clients):
            fleet.open()
    return await fleet.run()


def run(load: Load) -> LoadResult:
    """Runs the load to its end on a loop of its own (uvloop where it is there)."""
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.run(run_async(load))
    return uvloop.run(run_async(load))


def read_bodies(paths: Sequence[Path]) -> list[bytes]:
    """One body a file, or one a line of a `.jsonl` file."""
    bodies = []
    for path in paths:
        data = path.read_bytes()
        bodies += data.splitlines() if path.suffix == ".jsonl" else [data]
    return [body for body in bodies if body]


def parse_headers(lines: Sequence[str]) -> dict[str, str]:
    return {name.strip(): value.strip() for name, _, value in (s.partition(":") for s in lines)}


def load_of(asked: argparse.Namespace) -> Load:
    target = Target.parse(asked.url)
    bodies = read_bodies(asked.body) or [b""]
    method = asked.method or ("POST" if asked.body else "GET")
    headers = parse_headers(asked.header)
    calls = tuple(Call(render(target, b, method=method, headers=headers)) for b in bodies)
    share = asked.misbehave / 3
    mischief = Mischief(
        share, share, share, malformed_requests=malformed_requests(target, bodies[0])
    )
    return Load(
        target=target,
        calls=calls,
        clients=asked.clients,
        seconds=asked.seconds,
        warmup_s=asked.warmup,
        rate=asked.rate,
        timeout_s=asked.timeout,
        max_requests=asked.requests,
        seed=asked.seed,
        mischief=mischief,
    )


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.client.closed_loop", description=__doc__
    )
    parser.add_argument("--url", required=True)
    parser.add_argument("--method", help="GET without a body, else POST")
    parser.add_argument("--body", type=Path, action="append", default=[], help="file; repeatable")
    parser.add_argument("--header", action="append", default=[], help="'name: value'; repeatable")
    parser.add_argument("--clients", type=int, default=32, help="connections (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured (%(default)s)")
    parser.add_argument("--warmup", type=float, default=1.0, help="s before that (%(default)s)")
    parser.add_argument("--rate", type=float, default=0.0, help="open loop, requests a second")
    parser.add_argument("--requests", type=int, default=0, help="stop after so many")
    parser.add_argument("--timeout", type=float, default=30.0, help="s a request (%(default)s)")
    parser.add_argument("--misbehave", type=float, default=0.0, help="share of bad requests, 0..1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser


def main(argv: list[str] | None = None) -> int:
    asked = arguments().parse_args(argv)
    result = run(load_of(asked))
    if asked.json:
        print(json.dumps(result.summary()))
    else:
        print("\n".join(f"{name:>14}  {value}" for name, value in result.summary().items()))
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main())
