"""What callers notice when a disk that a server writes to runs full, and a process of it ends that
has to be started there: nothing. What is written down of it begins anew when there is room, and so
does a replica where it was Ray's own folder."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fault_cost import Blow, measured
from process_faults import all_run, processes
from served import Server, running, synthetic
from small_disks import SmallDisks

from deployments.control.supervisor.server_files import run_folder
from deployments.gateway.tenancy.tenants import new_key

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount small disks"),
]
SIZES = {
    "the state folder": "4m",
    "the cache folder": "16m",
    "the run folder": "16m",
    "the recordings' folder": "4m",
    "Ray's own folder": "256m",
}
# What begins anew while the disk is full; "": nothing does.
FULL = {
    "the state folder": "",
    "the cache folder": "a replica",
    "the run folder": "a gateway",
    "the recordings' folder": "",
    "Ray's own folder": "a replica",
}
FREED = {"Ray's own folder": 20.0}  # after so many seconds; the others when all is back
LEAKED, LEAKED_HASH = new_key()
IN_FORCE_S = 2.0
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
    tenants = {"default": {}, "acme": {"keys": [{"id": "leaked", "hash": LEAKED_HASH}]}}
    server = Server(folder, {"steady": model}, gateway={"replicas": 2}, tenants=tenants)
    server.environ["RAY_TMPDIR"] = str(rays)
    paths = {
        "the state folder": folder / "state",
        "the cache folder": folder / "cache",
        "Ray's own folder": rays,
        "the run folder": run_folder(server.port),
        "the recordings' folder": folder / "recording",
    }
    small = SmallDisks(server, {paths[name]: size for name, size in SIZES.items()})
    try:
        with running(server):
            small.started()
            yield Disks(server, small, paths)
    finally:
        for path in (rays, paths["the run folder"]):  # where the disks were mounted
            if path.is_dir():
                path.rmdir()


def strike(disks: Disks, name: str) -> set[int]:
    """The process that was ended."""
    disks.small.fill(disks.paths[name])
    assert disks.small.lacks_room(disks.paths[name])
    if name in FREED:
        threading.Timer(FREED[name], disks.small.free, [disks.paths[name]]).start()
    if not FULL[name]:
        return set()
    ended = processes(disks.server, FULL[name])[0]
    ended.send_signal(signal.SIGKILL)
    return {ended.pid}


def haproxy_knows_all(disks: Disks) -> bool:
    """Both gateways, also one that came while its files could not be written."""
    written = "".join(
        path.read_text()
        for path in disks.small.found(disks.paths["the run folder"], "*/haproxy.cfg")
    )
    urls = disks.server.gateway_urls()
    return len(urls) == 2 and all(f"{url.removeprefix('http://')} check" in written for url in urls)


@pytest.mark.parametrize("name", FULL)
def test_a_full_disk_costs_nobody_an_answer(disks: Disks, name: str) -> None:
    ended: set[int] = set()
    also = f", {FULL[name]} killed" if FULL[name] else ""
    freed = f" for {FREED[name]:g} s" if name in FREED else ""
    cost = measured(
        disks.server,
        Blow(
            f"disk full{freed}: {name}{also}, light load",
            lambda: ended.update(strike(disks, name)),
            lasts_s=8.0 + FREED.get(name, 0.0),
            is_back=lambda: all_run(disks.server, ended),
        ),
    )
    print(cost)
    assert disks.small.lacks_room(disks.paths[name]) == (name not in FREED)
    disks.small.free(disks.paths[name])
    disks.server.until(lambda: haproxy_knows_all(disks), 60)
    disks.server.until(lambda: WHOLE.items() <= disks.server.model_status("steady").items(), 60)
    assert (cost.lost, cost.refused) == (0, 0), cost


def test_a_key_that_is_revoked_while_there_is_no_room_for_it_stays_revoked(disks: Disks) -> None:
    server, states = disks.server, disks.paths["the state folder"]

    def status() -> int:
        bearer = {"authorization": f"Bearer {LEAKED}"}
        return server.infer("steady", [1], headers=bearer).status_code

    def is_written() -> bool:
        files = disks.small.found(states, "**/revoked-keys")
        return any(LEAKED_HASH in file.read_text().split() for file in files)

    assert status() == 200
    disks.small.fill(states)
    revoked = server.headrace("key", "revoke", "leaked")
    began = time.monotonic()
    assert revoked.returncode == 0, revoked.stderr
    server.until(lambda: status() == 401, IN_FORCE_S)
    print(f"refused {time.monotonic() - began:.2f} s after `headrace key revoke` returned")
    assert not is_written()
    disks.small.free(states)
    server.until(is_written, 10)
