from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict

import pytest

from deployments.control.ingress import haproxy
from deployments.control.preflight import node_survey
from deployments.control.preflight.node_facts import (
    NodeFacts,
    NodeQuery,
    collected,
    folder,
    is_serves_own,
    local_ports,
)
from deployments.control.supervisor.ports import PortListener, any_free


def query(**ports: tuple[str, int]) -> NodeQuery:
    return NodeQuery(("RAY_worker_niceness", "HEADRACE_HAPROXY_HOST"), ports)


def test_only_what_was_asked_for_is_told_of_an_environment():
    environ = {"RAY_worker_niceness": "0", "RAY_AUTH_TOKEN": "secret", "AWS_SECRET_KEY": "secret"}
    facts = collected(query(), environ)
    assert facts["environment"] == {"RAY_worker_niceness": "0"}
    assert "secret" not in repr(facts)


def test_a_node_tells_what_it_runs_and_what_it_may_open():
    facts = collected(query(), {})
    assert set(facts["versions"]) == {"headrace", "ray", "python"}
    assert facts["versions"]["ray"].startswith("2.")
    assert facts["open_files"] == -1 or facts["open_files"] > 0


def test_a_port_in_use_is_told_with_its_holder():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        asked = query(http=("127.0.0.1", taken), metrics=("127.0.0.1", any_free()))
        (busy,) = collected(asked, {})["busy"]
    assert (busy.what, busy.port, busy.serves) == ("http", taken, False)
    assert f"pid {os.getpid()}" in busy.who


@pytest.mark.parametrize(
    ("name", "command", "serves"),
    [
        ("haproxy", ("haproxy", "-db", "-f", "/tmp/haproxy-serve/a/haproxy.cfg"), True),
        ("ray::ServeRepli", ("ray::ServeReplica:gateway:gateway",), True),
        ("haproxy", ("haproxy", "-f", "/etc/haproxy.conf"), False),
        ("python", ("python", "-m", "http.server"), False),
    ],
)
def test_serves_own_listeners_are_known(name, command, serves):
    assert is_serves_own(PortListener(8000, "0.0.0.0", 7, name, command)) is serves


def test_the_wrapper_is_tried_where_one_is_named(tmp_path):
    good = {"RAY_SERVE_HAPROXY_BINARY_PATH": str(haproxy.program(tmp_path, tmp_path))}
    bad = {"RAY_SERVE_HAPROXY_BINARY_PATH": str(tmp_path / "none")}
    assert collected(query(), good)["wrapper"] is None
    assert collected(query(), bad)["wrapper"] == f"{tmp_path / 'none'} is no program"
    assert collected(query(), {})["wrapper"] is None


def test_a_folder_that_is_not_there_yet_is_as_good_as_the_one_above_it(tmp_path):
    found = folder(tmp_path / "cache" / "headrace")
    assert found.writable
    assert found.free_bytes > 0
    assert not (tmp_path / "cache").exists()


def test_a_file_in_a_folders_place_cannot_be_written_into(tmp_path):
    (tmp_path / "cache").write_text("")
    assert not folder(tmp_path / "cache" / "headrace").writable


@pytest.mark.parametrize(
    ("text", "expected"), [("32768\t60999\n", (32_768, 60_999)), ("odd", None), (None, None)]
)
def test_the_range_of_outgoing_ports_is_read_where_there_is_one(tmp_path, text, expected):
    path = tmp_path / "range"
    if text is not None:
        path.write_text(text)
    assert local_ports(path) == expected


def test_facts_and_questions_come_through_json_whole():
    asked = query(http=("0.0.0.0", any_free()))
    assert NodeQuery.of(json.loads(json.dumps(asdict(asked)))) == asked
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        asked = query(http=("127.0.0.1", holder.getsockname()[1]))
        facts = NodeFacts("a1", "10.0.0.1", True, **collected(asked, {}), clock_ahead_s=0.5)
    printed = f"noise\n{node_survey.MARK}{json.dumps([asdict(facts)])}\nmore\n"
    assert node_survey.read(printed) == [facts]


def test_output_without_nodes_is_none():
    assert node_survey.read("Traceback …\n") is None


def test_a_remote_traceback_is_told_by_its_last_line():
    error = RuntimeError("Traceback:\n  File x\nModuleNotFoundError: No module named 'a'\n\n")
    assert node_survey.last_line(error) == "ModuleNotFoundError: No module named 'a'"
    assert node_survey.last_line(RuntimeError()) == "RuntimeError"


def test_what_is_not_installed_has_no_version(monkeypatch):
    monkeypatch.setattr("deployments.control.preflight.node_facts.metadata.version", _none)
    assert collected(query(), {})["versions"]["headrace"] == "none"


def _none(name: str) -> str:
    from importlib.metadata import PackageNotFoundError

    raise PackageNotFoundError(name)
