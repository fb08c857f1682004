"""What callers and operators notice when the wall clock of a whole server is set: nothing, or that
Serve's controller is started anew.

Of its Python code, Serve's controller included, whose health checks ask it (`clock/`). A machine's
own clock is everybody's, and is left alone.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from signal import SIGSTOP

import pytest
from fault_cost import Blow, measured
from process_faults import FOUND, Fault, all_run, processes, strike
from served import Server, patient, running, synthetic

pytestmark = pytest.mark.chaos
STEPS_S = {"an hour forward": 3600.0, "two hours back": -3600.0, "to where it was": 0.0}
FOUND_S = 10.0
LASTS_S = 25.0  # longer than three health checks, a lease and a rate's window
MODEL = synthetic(options={"base_ms": 20}) | {"replicas": {"count": 2}}


class Clock:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0.0)

    def set(self, moved_s: float) -> None:
        """Eight bytes at one place, which a reader has whole or not yet."""
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.write(struct.pack("d", moved_s))


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    return Clock(tmp_path_factory.mktemp("clock") / "moved")


@pytest.fixture(scope="module")
def server(clock: Clock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("clocks")
    made = Server(folder, {"steady": MODEL}, gateway={"replicas": 2})
    moves = str(Path(__file__).parent / "clock")
    made.environ["PYTHONPATH"] += os.pathsep + moves
    made.environ["HEADRACE_TEST_CLOCK"] = str(clock.path)
    with running(made):
        yield made


def pids(server: Server, without: Collection[str] = ()) -> set[int]:
    """HAProxy is run anew whenever its gateways change."""
    names = FOUND.keys() - {"HAProxy", *without}
    return {each.pid for name in names for each in processes(server, name)}


@pytest.mark.parametrize("step", STEPS_S)
def test_a_clock_that_is_set_costs_nobody_an_answer(server, clock, step):
    """Nor a process, but for Serve's controller where it is set back: that is started anew, else it
    would look after nobody until the clock is where it was."""
    back = "back" in step
    ends = ["Serve's controller"] if back else []
    before, controllers = pids(server, ends), set(processes(server, "Serve's controller"))
    blow = Blow(
        f"the clock set {step}, light load",
        lambda: clock.set(STEPS_S[step]),
        lasts_s=LASTS_S,
        is_back=lambda: all_run(server, {each.pid for each in controllers} if back else ()),
    )
    cost = measured(server, blow)
    print(cost)
    assert (cost.lost, cost.refused) == (0, 0), cost
    assert pids(server, ends) == before
    changed = server.write("changed.yaml", {"steady": MODEL, "another": MODEL})
    for file in (changed, server.file):
        applied = server.headrace("apply", str(file), "--port", str(server.port))
        assert applied.returncode == 0, applied.stderr
    assert server.model_status("steady")["state"] == "ready"


def test_a_gateway_that_stops_while_the_clock_is_behind_is_found_all_the_same(server, clock):
    """And replaced: Serve's controller would wait until the clock is where it was."""
    (waits,) = processes(server, "Serve's controller")
    clock.set(-3600.0)
    stopped = processes(server, "a gateway")[0]
    strike(stopped, Fault("a gateway", SIGSTOP))
    began = time.monotonic()
    server.until(lambda: not stopped.is_running() or stopped.status() == "zombie", FOUND_S)
    found_s = time.monotonic() - began
    server.until(lambda: all_run(server, {stopped.pid, waits.pid}), 60)
    print(f"found after {found_s:.1f} s, another there after {time.monotonic() - began:.1f} s")
    assert found_s < patient(FOUND_S)
