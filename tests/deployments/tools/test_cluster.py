from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest

from deployments.control.dashboard import RayDashboard, RayJobs
from deployments.control.preflight import node_survey
from deployments.control.preflight.node_facts import NodeFacts, versions
from deployments.settings.plain import SettingsErrors
from deployments.tools import cluster

FILE = """\
models:
  device: {runtime: synthetic}
gateway: {ingress: haproxy, haproxy_threads: 3, limits: {max_requests: 70}}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    path = tmp_path / "settings.yaml"
    path.write_text(FILE)
    return path


def test_what_is_printed_is_what_a_shell_exports(file, capsys):
    assert cluster.env(file, (), as_json=False) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    shown = subprocess.run(
        ["sh", "-c", 'eval "$1"; env', "sh", printed.out], capture_output=True, text=True, env={}
    )
    exported = dict(line.split("=", 1) for line in shown.stdout.splitlines())
    assert exported["HEADRACE_HAPROXY_THREADS"] == "3"
    assert exported["HEADRACE_HAPROXY_MAX_REQUESTS"] == "70"
    assert exported["HEADRACE_HAPROXY_HOST"] == "0.0.0.0"
    assert exported["RAY_worker_niceness"] == "0"
    assert Path(exported["RAY_SERVE_HAPROXY_BINARY_PATH"]).is_file()
    assert "RAY_AUTH_TOKEN" not in exported


def test_json_says_of_each_variable_who_may_still_set_it(file, capsys):
    assert cluster.env(file, (), as_json=True) == 0
    by_name = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    threads, niceness = by_name["HEADRACE_HAPROXY_THREADS"], by_name["RAY_worker_niceness"]
    assert (threads["layer"], threads["value"], threads["in_config"]) == ("config", "3", True)
    assert (niceness["layer"], niceness["in_config"]) == ("image", False)


def test_an_image_is_told_nothing_of_a_file_or_a_node(file, capsys):
    outputs = []
    for each in (file, None):
        assert cluster.env(each, ("image",), as_json=False) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert "BINARY_PATH" not in outputs[0]


def test_a_node_without_a_token_is_told(file, capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cluster.env(file, (), as_json=False) == 0
    assert "ray get-auth-token --generate" in capsys.readouterr().err


def test_a_cluster_has_no_direct_ingress(tmp_path):
    path = tmp_path / "direct.yaml"
    path.write_text(FILE.replace("ingress: haproxy", "ingress: direct"))
    for command in (cluster.build, lambda path: cluster.env(path, (), as_json=False)):
        with pytest.raises(SettingsErrors, match=r"gateway\.ingress: is direct, which one machine"):
            command(path)


def test_a_node_without_haproxy_is_told_and_exports_nothing(file, capsys, monkeypatch):
    monkeypatch.setenv("HEADRACE_HAPROXY_PROGRAM", "/nowhere/haproxy")
    assert cluster.env(file, (), as_json=False) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "/nowhere/haproxy" in printed.err


# ---- check --------------------------------------------------------------------------------------


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch):
    """A cluster whose job prints what `says` gives; what it was asked to run."""

    def answers(output: str, state: str = "SUCCEEDED") -> list[str]:
        commands: list[str] = []

        def answer(request: httpx.Request) -> httpx.Response:
            if not request.headers.get("authorization"):
                return httpx.Response(401, text="no token")
            if request.method == "POST" and request.url.path == "/api/jobs/":
                commands.append(json.loads(request.content)["entrypoint"])
                return httpx.Response(200, json={"submission_id": "j"})
            if request.url.path.endswith("/logs"):
                return httpx.Response(200, json={"logs": output})
            return httpx.Response(200, json={"status": state, "message": "it ended"})

        def reached(address: str | None) -> RayJobs:
            return RayJobs(
                RayDashboard("http://head", "secret", transport=httpx.MockTransport(answer))
            )

        monkeypatch.setattr(cluster, "jobs_of", reached)
        return commands

    return answers


def says(**facts) -> str:
    wanted = {each.name: each.value for each in cluster.ray_env.variables(cluster.gateway_of(None))}
    wanted["RAY_SERVE_HAPROXY_BINARY_PATH"] = "/usr/local/bin/headrace-haproxy"
    wanted["HEADRACE_HAPROXY_THREADS"], wanted["HEADRACE_HAPROXY_MAX_REQUESTS"] = "3", "70"
    node = NodeFacts("a", "10.0.0.1", True, versions=versions(), environment=wanted, **facts)
    return f"{node_survey.MARK}{json.dumps([asdict(node)])}"


def test_a_cluster_that_is_right_is_0_and_says_so(file, head, capsys):
    head(says())
    assert cluster.check(file, None, as_json=False) == 0
    assert "nothing is wrong" in capsys.readouterr().out


def test_what_would_break_is_1_and_has_a_mend(file, head, capsys):
    head(says(wrapper="found nothing to edit"))
    assert cluster.check(file, None, as_json=False) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "error: 10.0.0.1: found nothing to edit" in printed
    assert "let RAY_SERVE_HAPROXY_BINARY_PATH be" in printed


def test_machines_get_the_same_as_json(file, head, capsys):
    head(says(open_files=100, wrapper="broken"))
    assert cluster.check(file, None, as_json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert told["nodes"][0]["address"] == "10.0.0.1"
    assert told["findings"][0]["level"] == "error"


def test_the_job_asks_each_node_about_the_files_settings(file, head):
    commands = head(says())
    cluster.check(file, None, as_json=True)
    (command,) = commands
    assert f"-m {node_survey.__name__} " in command
    assert "HEADRACE_HAPROXY_MAX_REQUESTS" in command


def test_a_head_without_headrace_is_told_as_that(file, head, capsys):
    head("/usr/bin/python: No module named deployments.control\n", state="FAILED")
    assert cluster.check(file, None, as_json=False) == 1
    assert "headrace is not installed on the head node" in capsys.readouterr().err


def test_a_job_that_failed_is_told_with_its_last_words(file, head, capsys):
    head("Traceback:\nRuntimeError: no such device\n", state="FAILED")
    assert cluster.check(file, None, as_json=False) == 1
    assert "it ended\nTraceback:\nRuntimeError: no such device" in capsys.readouterr().err
