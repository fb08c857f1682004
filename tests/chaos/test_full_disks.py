"""What callers notice when a disk that a server writes to runs full, and a process of it ends that
has to be started there: nothing. What is written down of it begins anew when there is room."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fault_cost import Blow, measured
from process_faults import all_run, processes
from served import Server, running, synthetic
from small_disks import SmallDisks

from deployments.cluster.server_files import run_folder

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount small disks"),
]
SIZES = {"state": "4m", "cache": "16m", "Ray's": "256m", "run": "16m", "recording": "4m"}
# What begins anew while the disk is full; "": nothing does.
FULL = {
    "state": "",
    "cache": "a replica",
    "Ray's": "a replica",
    "run": "a gateway",
    "recording": "",
}
WHOLE = {"state": "ready", "replicas_ready": 2, "leases": 0, "drift": 0, "waiting_rows": 0}


@dataclass(frozen=True)
class Disks:
    server: Server
    small: SmallDisks
    paths: dict[str, Path]


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disks]:
    folder = tmp_path_factory.mktemp("disks")
    rays = Path("/tmp") / f"r{os.getpid()}"  # a socket's path may not be long
    model = synthetic(
        options={"base_ms": 20},
        replicas={"count": 2},
        record={"folder": str(folder / "recording"), "max_requests": 1_000_000},
    )
    server = Server(folder, {"steady": model}, gateway={"replicas": 2})
    server.environ["RAY_TMPDIR"] = str(rays)
    paths = {
        "state": folder / "state",
        "cache": folder / "cache",
        "Ray's": rays,
        "run": run_folder(server.port),
        "recording": folder / "recording",
    }
    small = SmallDisks(server, {paths[name]: size for name, size in SIZES.items()})
    try:
        with running(server):
            small.started()
            yield Disks(server, small, paths)
    finally:
        for path in (rays, paths["run"]):  # where the disks were mounted
            if path.is_dir():
                path.rmdir()


def strike(disks: Disks, name: str) -> set[int]:
    """The process that was ended."""
    disks.small.fill(disks.paths[name])
    if not FULL[name]:
        return set()
    ended = processes(disks.server, FULL[name])[0]
    ended.send_signal(signal.SIGKILL)
    return {ended.pid}


@pytest.mark.parametrize("name", FULL)
def test_a_full_disk_costs_nobody_an_answer(disks: Disks, name: str) -> None:
    ended: set[int] = set()
    also = f", {FULL[name]} killed" if FULL[name] else ""
    cost = measured(
        disks.server,
        Blow(
            f"disk full: the {name} folder{also}, light load",
            lambda: ended.update(strike(disks, name)),
            lasts_s=8.0,
            is_back=lambda: all_run(disks.server, ended),
        ),
    )
    print(cost)
    assert disks.small.lacks_room(disks.paths[name])
    disks.small.free(disks.paths[name])
    disks.server.until(lambda: len(disks.server.gateway_urls()) == 2, 60)
    disks.server.until(lambda: WHOLE.items() <= disks.server.model_status("steady").items(), 60)
    assert (cost.lost, cost.refused) == (0, 0), cost
