"""Sends a scenario from several processes as if from one.

Each process makes the same plan and sends every Nth request of it, all from one moment on; each
keeps its own account, and the accounts add up. The process that started them only watches, so that
drawing a view never delays a request. Ctrl-C ends a run early; what was seen until then is kept.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from loadtests.client.player import Player, PlayerSettings, run_loop
from loadtests.client.protocols.malformed import with_malformed
from loadtests.client.protocols.types import Wire
from loadtests.results.record import TenantLengthStats, merged
from loadtests.results.recorder import RecordingRules, RunRecorder
from loadtests.traffic.plan import PlanPart, TrafficPlan
from loadtests.traffic.scenario import Scenario

GLIMPSE_S = 0.5
KEPT_FILES = 64  # that are no connections
START_S = 1.0  # for all processes to be ready
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}
_CONTEXT = multiprocessing.get_context("spawn")


class WorkerLost(RuntimeError):
    """A process ended without its account."""


@dataclass(frozen=True, slots=True)
class PlayOrder:
    """What is to be played, and how. `connections`: of all processes together."""

    scenario: Scenario
    folder: Path
    wire: Wire
    terms: RecordingRules
    processes: int = 1
    connections: int = 4096
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What one process has seen so far. `at_s`: since the start of the warm-up."""

    at_s: float
    tenants: dict[str, TenantLengthStats]


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """One process's at the end. `cpu`: its share of a core; `full`: every connection was open."""

    recorder: RunRecorder
    cpu_s: float
    cpu: float
    full: bool
    stopped_s: float


Watch = Callable[[list[Glimpse]], None]


def play(order: PlayOrder, watch: Watch) -> list[WorkerResult]:
    """`watch` hears of the processes' last glimpses. Raises TraceError and WorkerLost."""
    start = time.time() + START_S
    running: list[tuple[BaseProcess, Connection]] = []
    with _interruptible(running):
        try:
            with _held_back():
                running += [_start(order, number, start) for number in range(order.processes)]
            return _watched({pipe: None for _, pipe in running}, watch)
        finally:
            for process, pipe in running:
                process.join(timeout=5.0)
                process.kill()
                pipe.close()


def _start(order: PlayOrder, number: int, start: float) -> tuple[BaseProcess, Connection]:
    mine, its = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_work, args=(order, number, start, its), daemon=True)
    process.start()
    its.close()
    return process, mine


def _watched(glimpses: dict[Connection, Glimpse | None], watch: Watch) -> list[WorkerResult]:
    accounts: list[WorkerResult] = []
    open_pipes = list(glimpses)
    while open_pipes:
        for pipe in wait(open_pipes, timeout=GLIMPSE_S):
            assert isinstance(pipe, Connection)
            try:
                said = pipe.recv()
            except EOFError:
                raise WorkerLost("a load generating process ended without its account") from None
            if isinstance(said, Exception):
                raise said
            if isinstance(said, WorkerResult):
                accounts.append(said)
                open_pipes.remove(pipe)
            else:
                glimpses[pipe] = said
        watch([each for each in glimpses.values() if each is not None])
    return accounts


@contextmanager
def _held_back() -> Iterator[None]:
    """What starts meanwhile inherits that it hears of no signal until it asks to."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _interruptible(running: list[tuple[BaseProcess, Connection]]) -> Iterator[None]:
    """Hands Ctrl-C and SIGTERM on: each process ends early, and its account still comes."""

    def hand_on(number: int, frame: Any) -> None:
        for process, _ in running:
            if process.pid is not None and process.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGUSR1)

    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, hand_on) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


# ---- in a process of its own --------------------------------------------------------------------


def _work(order: PlayOrder, number: int, start: float, pipe: Connection) -> None:
    account: WorkerResult | Exception
    try:
        account = run_loop(_played(order, number, start, pipe))
    except Exception as error:  # told where it can be explained
        account = error
    with suppress(BrokenPipeError):
        pipe.send(account)


async def _played(order: PlayOrder, number: int, start: float, pipe: Connection) -> WorkerResult:
    recorder = RunRecorder(order.terms)
    plan = TrafficPlan(order.scenario, order.folder, part=PlanPart(number, order.processes))
    connections = max(1, min(order.connections, max_connections()) // order.processes)
    wire = with_malformed(order.wire)
    wire.reseed(f"{order.scenario.seed} {number}")
    stand = PlayerSettings(
        wire.place.target, wire.request, wire.listener, connections, timeout_s=order.timeout_s
    )
    player = Player(plan, stand, recorder.ended)
    begin = time.perf_counter() + start - time.time()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, player.stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    # A collection of everything that lives takes as long as a request may be late.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    teller = asyncio.create_task(_tell(recorder, begin, pipe))
    cpu_s = await player.run(begin)
    teller.cancel()
    wall_s = time.perf_counter() - begin
    full = player.max_connections >= connections
    return WorkerResult(recorder, cpu_s, cpu_s / wall_s, full, wall_s)


def max_connections() -> int:
    """As many as this process may open, its limit raised as far as it goes."""
    try:
        import resource
    except ImportError:  # Windows
        return 500
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = 1_048_576
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard - KEPT_FILES


async def _tell(recorder: RunRecorder, begin: float, pipe: Connection) -> None:
    while True:
        await asyncio.sleep(GLIMPSE_S)
        tenants = {name: merged(cells.values()) for name, cells in recorder.cells.items()}
        with suppress(BrokenPipeError):
            pipe.send(Glimpse(time.perf_counter() - begin, tenants))
