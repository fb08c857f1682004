"""What callers and operators notice when Serve's controller of several models hangs: nothing, and
that a change takes as long as until it has been found, ended and started again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from signal import SIGKILL, SIGSTOP, SIGTERM

import pytest
from fault_cost import Blow, measured
from process_faults import Fault, processes, strike
from served import Server, patient, running, synthetic

pytestmark = pytest.mark.chaos
BACK_S = 40.0  # 15 of silence, 5 until it is ended, its start, and that of a replica
MODELS = {
    name: synthetic(options={"base_ms": 20}) | {"replicas": {"count": 2}}
    for name in ("steady", "other")
}
TERMS = [
    Fault("Serve's controller", SIGTERM),
    Fault("Serve's controller", SIGSTOP, hangs_s=60.0),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("controller")
    with running(Server(folder, MODELS, gateway={"replicas": 2})) as made:
        yield made


@pytest.mark.parametrize("fault", TERMS, ids=str)
def test_it_is_started_again_and_what_was_lost_meanwhile_comes_back(server, fault):
    (hangs,) = processes(server, "Serve's controller")
    lost = min(server.replicas("other"))

    def blow() -> None:
        strike(hangs, fault)
        time.sleep(1.0)
        next(p for p in server.processes() if p.pid == lost).send_signal(SIGKILL)

    def is_back() -> bool:
        controllers = {p.pid for p in processes(server, "Serve's controller")}
        return bool(controllers - {hangs.pid}) and len(server.replicas("other") - {lost}) == 2

    cost = measured(server, Blow(f"{fault}, a replica killed", blow, lasts_s=5.0, is_back=is_back))
    print(cost)
    assert (cost.lost, cost.refused) == (0, 0), cost
    assert cost.back_s < patient(BACK_S)
    changed = server.write("changed.yaml", MODELS | {"other": MODELS["other"] | {"queue": {}}})
    began = time.monotonic()
    applied = server.headrace("apply", str(changed), "--port", str(server.port))
    print(f"applied after {time.monotonic() - began:.1f} s")
    assert applied.returncode == 0, applied.stderr
    assert f"Serve's controller, process {hangs.pid}, is ended" in server.output
