"""`headrace serve` from first line to last: start, refusals, drain, stop, and sudden deaths."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time

import httpx
import psutil
import pytest
from served import Later, Server, describe, get, listens, patient, synthetic, total

pytestmark = pytest.mark.integration

PHASES = ("starting", "staging", "warming", "ready in")
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
SLOW = synthetic(options={"base_ms": 5000})  # what is asked while it runs takes less
PHASED = synthetic(options={"load_s": 1.0, "warm_s": 1.0})


@pytest.fixture(scope="module")
def server(serve) -> Server:
    made: Server = serve({"phased": PHASED, "slow": SLOW})
    for name in ("deployments", "socks", "runtimes"):
        (made.folder / f"{name}.py").write_text("raise RuntimeError('from the user's folder')")
    return made.start()


def plain(text: str) -> str:
    """Without what moves a terminal's cursor or colours its text."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n")


def test_progress_is_shown_until_ready_within_a_minute(server):
    shown = [line for line in plain(server.output).split("\n") if line.startswith("phased")]
    text = "\n".join(shown)
    first = [text.find(word) for word in PHASES]
    assert -1 not in first, text
    assert first == sorted(first)
    assert server.started_s < patient(60)


def test_the_printed_curl_works(server):
    server.until(lambda: "\n  curl" in plain(server.output), 10)
    line = next(s for s in plain(server.output).split("\n") if s.startswith("  curl"))
    answer = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
    assert '"outputs":[{"name":"sum"' in answer.stdout


def test_it_listens_on_loopback_alone(server):
    found = server.listening()
    assert {port for _, port, _ in found} >= {server.port, server.gateway["metrics_port"]}
    open_to_all = [each for each in found if each[0] not in LOOPBACK]
    assert not open_to_all


def test_telemetry_is_off_in_every_process(server):
    environ = server.named("ray::ServeReplica:gateway")[0].environ()
    assert environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert environ["OPENVINO_TELEMETRY_OPT_OUT"] == "1"


def test_workers_lines_reach_the_terminal(server):
    server.until(lambda: '"logger":"headrace.metrics"' in server.output, 10)


def test_a_second_server_on_the_port_is_refused_and_the_first_unharmed(server):
    second = server.headrace("serve", str(server.file))
    assert second.returncode == 1
    assert f"port {server.port} is served by Headrace already" in second.stderr
    elsewhere = dict(server.environ, XDG_STATE_HOME=str(server.folder / "elsewhere"))
    third = subprocess.run(
        [*second.args], env=elsewhere, capture_output=True, text=True, check=False
    )
    assert third.returncode == 1
    assert "is served by Headrace already" in third.stderr
    assert server.infer("phased", [1, 2]).status_code == 200


def states(server: Server) -> list[tuple[str, str, int]]:
    models = server.status()["models"]
    return [(m["name"], m["state"], m["replicas_ready"]) for m in models]


def test_status_tells_models_and_replicas(server):
    both = [("phased", "ready", 1), ("slow", "ready", 1)]
    server.until(lambda: states(server) == both, 10)  # it is up to a second old
    said = server.headrace("status", "--json")
    assert [m["name"] for m in json.loads(said.stdout)["models"]] == ["phased", "slow"]


def test_ctrl_c_drains_and_leaves_nothing(server):
    with httpx.Client(verify=False, base_url=server.url, timeout=30) as kept_alive:
        assert kept_alive.get("/readyz").status_code == 200
        running = Later(lambda: server.infer("slow", [20, 22]))
        server.works_on("slow")
        server.press_ctrl_c()
        server.until(lambda: kept_alive.get("/readyz").status_code == 503, 5)
        assert get(f"{server.url}/readyz") == 503
    refused = server.infer("phased", [1])
    server.press_ctrl_c()
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert total(running.answer()) == 42
    began = time.monotonic()
    assert server.wait() == 0
    assert time.monotonic() - began < patient(20)
    assert server.remaining() == []
    assert not [port for port in server.gateway.values() if listens(port)]
    assert "no server" in server.headrace("status").stderr


def test_a_foreign_listener_is_named_and_nothing_is_started(serve):
    server = serve({"device": synthetic()})
    with socket.create_server(("127.0.0.1", server.port)):
        server.start(ready=False)
        assert server.wait(20) == 1
    assert "gateway.port" in server.output
    assert "pytest" in server.output
    assert "pid" in server.output
    assert server.remaining() == []


def kill_cluster(server: Server) -> list[psutil.Process]:
    """Kills the host and the command line, as the kernel does that is out of memory; what is left
    of the server, HAProxy included."""
    # In an order in which nobody is left who would end HAProxy while the cluster falls apart.
    (raylet,) = server.called("raylet")
    # Ray's agents rename themselves, and carry their server's id all the same.
    for agent in ("ray::DashboardAgent", "ray::RuntimeEnvAgent"):
        server.until(lambda agent=agent: bool(server.named(agent)), 30)
    of_haproxy = [p for p in server.processes() if " -db -f " in describe(p)]
    haproxies = server.called("haproxy")
    watchers = [p for p in of_haproxy if p not in haproxies]
    assert watchers
    # Of the two, whichever is left would end the rest in order: so neither notices.
    command_line, host = psutil.Process(server.process.pid), server.host()
    command_line.suspend()
    host.suspend()
    for process in (*watchers, raylet, *server.named("ray::HAProxyManager"), host, command_line):
        process.kill()
    assert server.wait() == -signal.SIGKILL
    left = server.processes()
    assert [p for p in left if " -db -f " in describe(p)]
    assert listens(server.port)
    return left


@pytest.mark.chaos
def test_what_a_killed_host_left_is_ended_by_the_next_start_and_by_stop(serve):
    server = serve({"device": synthetic()}, gateway={"ingress": "haproxy"}).start()
    left = kill_cluster(server)
    server.start()
    assert f"that a killed server left on port {server.port}: " in plain(server.output)
    assert not set(left) & set(server.processes())
    assert server.infer("device", [1, 2]).status_code == 200

    kill_cluster(server)
    stopped = server.headrace("stop", "--port", str(server.port))
    assert stopped.returncode == 0, stopped.stderr
    assert f"that a killed server left on port {server.port}: " in stopped.stderr
    assert server.processes() == []
    assert not listens(server.port)
    again = server.headrace("stop", "--port", str(server.port))
    assert again.returncode == 1
    assert "no server" in again.stderr


def test_a_model_that_cannot_load_fails_the_start_with_its_reason(serve):
    server = serve({"broken": {"runtime": "onnxruntime", "source": "rubbish.onnx"}})
    (server.folder / "rubbish.onnx").write_bytes(b"\x3a\x04\x5a\x02\x0a\x05")  # an input is cut off
    server.start(ready=False)
    assert server.wait(60) == 1
    assert "model broken cannot start: " in server.output
    assert "rubbish.onnx" in server.output
    said = server.headrace("logs", "broken", "--port", str(server.port))  # though it has ended
    assert (said.returncode, "cannot start" in said.stdout) == (0, True), said.stderr
