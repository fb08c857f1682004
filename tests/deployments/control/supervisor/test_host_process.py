"""A start meets what other servers left; an end leaves nothing, whatever fails on its way."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from deployments.control.origin import Origin
from deployments.control.supervisor import host_process, orphaned_processes, ports, server_files
from deployments.control.supervisor.host_process import ClusterLost, Host, StartFailed
from deployments.control.supervisor.server_files import ProcessMark, ServerState
from deployments.settings.tree import Settings

KILLED = ProcessMark(os.getpid(), 1.0)  # a pid that the system gave away again


class Said:
    """What a host told its command line."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def __call__(self, event: str, **fields: object) -> None:
        self.messages.append(str(fields.get("message", "")))


def said(host: Host) -> str:
    return "\n".join(host._say.messages)


@pytest.fixture
def host(tmp_path, monkeypatch) -> Host:
    """Of a server that is not started."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(server_files, "run_folder", lambda port: tmp_path / f"run-{port}")
    names = ("port", "metrics_port", "haproxy_stats_port", "haproxy_metrics_port")
    gateway = dict(zip(names, ports.several_free(4), strict=True))
    models = {"m": {"runtime": "synthetic"}}
    settings = Settings.model_validate({"models": models, "gateway": gateway})
    return Host(settings, Path("settings.yaml"), Said())


def write_state(host: Host, mark: ProcessMark, server_id: str = "") -> None:
    state = ServerState(host._port, mark, "", "", "settings.yaml", 0.0, server_id)
    server_files.write(state, host._states)


def test_a_second_server_takes_free_ports_and_says_so(host, monkeypatch):
    monkeypatch.setattr(ports, "free_instead", lambda gateway: {"haproxy_stats_port": 45678})
    gateway = host._settings.gateway.model_dump(exclude={"haproxy_stats_port"})
    models = {"m": {"runtime": "synthetic"}}
    host._settings = Settings.model_validate({"models": models, "gateway": {"port": host._port}})
    assert host._complete().haproxy_stats_port == 45678
    assert "port 8404 (gateway.haproxy_stats_port) is taken: 45678 instead" in said(host)
    file = Settings.model_validate({"models": models, "gateway": {"port": host._port}})
    assert host._origin.completed(file).gateway.haproxy_stats_port == 45678
    named = {"models": models, "gateway": {"haproxy_stats_port": gateway["port"]}}
    kept = host._origin.completed(Settings.model_validate(named)).gateway.haproxy_stats_port
    assert kept == gateway["port"]


def test_a_server_that_runs_on_the_port_is_said_so(host):
    write_state(host, ProcessMark.of(os.getpid()))
    refusal = host._clear_the_way()
    assert f"port {host._port} is served by Headrace already" in refusal
    assert str(os.getpid()) in refusal


def test_the_state_of_a_dead_server_is_no_hindrance(host):
    write_state(host, KILLED)
    assert host._clear_the_way() is None


def test_so_few_open_files_that_nobody_could_connect_refuse_the_start(host, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    assert "256 files open here, and 100 callers' connections need 450" in host._clear_the_way()


def test_what_a_killed_server_left_is_ended_and_said(host):
    server_id = uuid.uuid4().hex
    write_state(host, KILLED, server_id)
    environ = os.environ | {orphaned_processes.VARIABLE: server_id}
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=environ)
    try:
        assert host._clear_the_way() is None
        assert left.wait(10) == -15
    finally:
        left.kill()
        left.wait()
    assert "ended a process that a killed server left" in said(host)


def test_a_start_is_refused_while_a_process_of_a_killed_server_does_not_end(host, monkeypatch):
    def never(server_id, *limit_s):
        raise TimeoutError("processes 7 of a killed server do not end")

    write_state(host, KILLED, "some")
    monkeypatch.setattr(orphaned_processes, "end", never)
    assert host._clear_the_way() == "processes 7 of a killed server do not end"
    assert server_files.read(host._port, host._states) is not None


class StartingCluster:
    def status(self) -> dict[str, object]:
        return {"models": []}

    dashboard_url = "http://127.0.0.1:1"


class Keys:
    def listing(self) -> dict[str, object]:
        return {"keys": []}

    def revoke(self, request: dict[str, object]) -> dict[str, object]:
        return {"revoked": request["key"]}


def test_a_server_that_starts_is_shown_and_takes_no_changes_yet(host, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    host._cluster, host._keys = StartingCluster(), Keys()
    handlers = host._handlers()
    assert handlers["status"]({})["models"] == []
    assert "still starting" in handlers["where"]({})["error"]
    assert handlers["revoke"]({"key": "k"}) == {"revoked": "k"}  # that waits for nothing
    host._is_ready = True
    told = handlers["where"]({})
    assert (told["dashboard"], told["token"]) == ("http://127.0.0.1:1", "secret")
    assert Origin.from_plain(told["origin"]) == host._origin


class LostCluster:
    """Whose processes have ended: a request to them hangs."""

    logs = "logs"

    def __init__(self) -> None:
        self.waits = threading.Event()

    def lost(self) -> str:
        return "node process (raylet), process 7"

    def drain(self, limit_s: float) -> None:
        self.waits.wait()


def test_a_lost_cluster_is_said_and_nothing_waits_for_it(host, monkeypatch):
    ended = []
    monkeypatch.setattr(orphaned_processes, "end", lambda found, limit_s: ended.append(found))
    monkeypatch.setattr(host_process, "_LOST_S", 0.01)
    host._cluster = LostCluster()
    with pytest.raises(ClusterLost, match=r"Ray's node process \(raylet\), process 7, has ended"):
        host._check_cluster()
    host._end()
    host._cluster.waits.set()
    assert ended == [host._id]


class FallenCluster:
    def lost(self) -> None:
        return None

    def drain(self, limit_s: float) -> None:
        raise RuntimeError("the controller is gone")


def test_processes_and_files_go_although_the_cluster_does_not_end_in_order(host, monkeypatch):
    ended = []
    monkeypatch.setattr(orphaned_processes, "end", lambda found, limit_s: ended.append(found))
    server_files.write(host._state("", ""), host._states)
    server_files.make_run_folder(host._port)
    host._cluster = FallenCluster()
    host._end()
    assert ended == [host._id]
    assert server_files.known(host._port, host._states) == []
    assert not server_files.run_folder(host._port).exists()


def test_files_are_kept_while_a_process_does_not_end(host, monkeypatch):
    def never(server_id, *limit_s):
        raise TimeoutError("processes 7 of a killed server do not end")

    monkeypatch.setattr(orphaned_processes, "end", never)
    server_files.write(host._state("", ""), host._states)
    host._end()
    assert [state.server_id for state in server_files.known(host._port, host._states)] == [host._id]


class Starting:
    """A cluster whose models in `failed` cannot start, and which is ready when the others are."""

    def __init__(self, failed: dict[str, str], host: Host) -> None:
        self.failed, self.host, self.logs = failed, host, "logs"

    def progress(self):
        return []

    def waits(self, models):
        return dict.fromkeys(models, "waits for 1 GPU")

    def cannot_start(self, names):
        return {name: why for name, why in self.failed.items() if name in names}

    def ready(self, gateways):
        return True

    def lost(self):
        return None

    def descriptions(self):
        return []


def test_a_model_without_a_process_is_told_with_what_it_waits_for(host):
    told = []
    host._say = lambda event, **fields: told.append((event, fields))
    two_models(host, optional=True)._until_ready()
    event, fields = told[0]
    assert event == "progress"
    row = {"model": "extra", "phase": "starting", "fraction": 0.0, "detail": "waits for 1 GPU"}
    assert row in fields["models"]


def test_a_start_that_takes_too_long_says_what_is_waited_for(host, monkeypatch):
    two_models(host)
    monkeypatch.setattr(host._cluster, "cannot_start", lambda names: {}, raising=False)
    monkeypatch.setattr(host._cluster, "ready", lambda gateways: False, raising=False)
    monkeypatch.setattr(host_process, "_POLL_S", 0.0)
    for model in host._settings.models.values():
        model.replicas.__dict__["start_timeout_s"] = 0.0
    with pytest.raises(StartFailed, match="extra waits for 1 GPU; "):
        host._until_ready()


def two_models(host: Host, **second) -> Host:
    models = {"m": {"runtime": "synthetic"}, "extra": {"runtime": "synthetic", **second}}
    host._settings = Settings.model_validate({"models": models})
    host._cluster = Starting({"extra": "no such file"}, host)
    return host


def test_a_start_does_without_an_optional_model_and_says_so(host):
    two_models(host, optional=True)._until_ready()
    assert "extra is optional and cannot start: no such file" in said(host)


def test_a_start_ends_with_a_model_that_is_not_optional(host):
    with pytest.raises(StartFailed, match="model extra cannot start: no such file"):
        two_models(host)._until_ready()


@pytest.mark.slow
@pytest.mark.parametrize("module", ["control.supervisor.host_process", "tools.serve"])
def test_ray_is_not_imported_before_its_environment_is_set(module):
    code = f"import deployments.{module}, sys; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
