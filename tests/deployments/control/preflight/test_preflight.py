from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from deployments.control import ray_env
from deployments.control.preflight.node_facts import BusyPort, FolderFacts, NodeFacts
from deployments.control.preflight.preflight import NodeFinding, findings, node_query, of_token
from deployments.settings.gateway import GatewaySettings

GATEWAY = GatewaySettings(ingress="haproxy")
WANTED = ray_env.variables(GATEWAY, Path("headrace-haproxy"))
OWN = {"headrace": "0.1.0", "ray": "2.60.0", "python": "3.11.7"}
HEAD = NodeFacts(
    "a1", "10.0.0.1", True,
    versions=OWN,
    environment={each.name: each.value for each in WANTED},
    folders=(FolderFacts("/cache", True, 1 << 40),),
    open_files=65_536,
    local_ports=(32_768, 60_999),
)  # fmt: skip
WORKER = replace(HEAD, node="b2", address="10.0.0.2", head=False)


def found(*nodes: NodeFacts) -> list[NodeFinding]:
    return findings(nodes, GATEWAY, WANTED, OWN)


def only(*nodes: NodeFacts) -> NodeFinding:
    (finding,) = found(*nodes)
    return finding


def without(node: NodeFacts, *names: str) -> NodeFacts:
    return replace(node, environment={n: v for n, v in node.environment.items() if n not in names})


def test_nothing_is_said_of_nodes_that_are_right():
    assert found(HEAD, WORKER) == []


@pytest.mark.parametrize(
    ("versions", "level"),
    [
        ({"ray": "2.59.0"}, "error"),
        ({"headrace": "0.0.9"}, "error"),
        ({"python": "3.12.1"}, "error"),
        ({"python": "3.11.9"}, "warning"),
    ],
)
def test_a_node_of_another_version_than_the_head_is_named(versions, level):
    finding = only(HEAD, replace(WORKER, versions=OWN | versions))
    ((name, there),) = versions.items()
    assert (finding.level, finding.topic, finding.node) == (level, "versions", "10.0.0.2")
    assert finding.message == f"{name} {there}; the head has {OWN[name]}"


def test_a_cluster_of_another_headrace_than_this_is_a_warning():
    newer = OWN | {"headrace": "0.2.0"}
    finding = only(replace(HEAD, versions=newer), replace(WORKER, versions=newer))
    assert (finding.level, finding.message) == ("warning", "headrace 0.2.0; here it is 0.1.0")


def test_what_must_stand_before_ray_start_is_an_error_where_it_breaks():
    finding = only(without(HEAD, "RAY_SERVE_HAPROXY_BINARY_PATH"))
    assert (finding.level, finding.topic) == ("error", "environment")
    assert "RAY_SERVE_HAPROXY_BINARY_PATH is not set" in finding.message
    assert 'eval "$(headrace cluster env FILE)"' in finding.mend


def test_what_only_costs_speed_is_a_warning():
    slow = replace(HEAD, environment={**HEAD.environment, "RAY_worker_niceness": "15"})
    finding = only(slow)
    assert finding.level == "warning"
    assert finding.message.startswith("RAY_worker_niceness is 15, not 0 (")


def test_what_the_serve_config_can_still_set_is_one_warning():
    late = [each.name for each in WANTED if each.in_config and not each.is_dynamic]
    finding = only(without(HEAD, *late))
    assert finding.level == "warning"
    assert f"{len(late)} variables are left to the Serve config" in finding.message
    assert "controller_options" in finding.mend


def test_a_value_that_the_config_would_override_is_a_warning():
    other = replace(HEAD, environment={**HEAD.environment, "HEADRACE_HAPROXY_REPLAY": "0"})
    finding = only(other)
    assert finding.level == "warning"
    assert "is 0, not 1 (gateway.replay" in finding.message


def test_what_running_processes_hear_no_node_needs():
    heard = {each.name: "9" for each in WANTED if each.is_dynamic}
    assert {"HEADRACE_HAPROXY_MAX_BODY_BYTES", "HEADRACE_LOG_LEVEL"} <= heard.keys()
    assert found(without(HEAD, *heard)) == []
    assert found(replace(HEAD, environment={**HEAD.environment, **heard})) == []


def test_the_wrapper_may_be_elsewhere_on_each_node():
    there = {**HEAD.environment, "RAY_SERVE_HAPROXY_BINARY_PATH": "/opt/venv/bin/headrace-haproxy"}
    assert found(replace(HEAD, environment=there)) == []


def test_a_wrapper_that_cannot_serve_is_an_error_in_its_own_words():
    finding = only(replace(HEAD, wrapper="found nothing to edit for 'a gateway has a bound'"))
    assert (finding.level, finding.topic) == ("error", "wrapper")
    assert "found nothing to edit" in finding.message


@pytest.mark.parametrize(
    ("folder", "level", "says"),
    [
        (FolderFacts("/cache", False, 1 << 40), "error", "/cache cannot be written"),
        (FolderFacts("/cache", True, 1 << 30), "warning", "/cache has 1.0 GiB left"),
    ],
)
def test_a_cache_that_cannot_hold_models_is_named(folder, level, says):
    finding = only(replace(HEAD, folders=(folder,)))
    assert (finding.level, finding.topic, finding.message) == (level, "caches", says)


@pytest.mark.parametrize(
    ("ahead_s", "error_s", "said"),
    [(0.9, 0.0, False), (-1.2, 0.1, True), (1.2, 0.1, True), (1.2, 0.3, False)],
)
def test_a_clock_that_is_surely_wrong_is_a_warning(ahead_s, error_s, said):
    nodes = (HEAD, replace(WORKER, clock_ahead_s=ahead_s, clock_error_s=error_s))
    assert [each.topic for each in found(*nodes)] == (["clock"] if said else [])


@pytest.mark.parametrize(
    ("files", "said"), [(1024, True), (10_350, True), (10_360, False), (-1, False)]
)
def test_too_few_open_files_are_a_warning(files, said):
    topics = [each.topic for each in found(replace(HEAD, open_files=files))]
    assert topics == (["open files"] if said else [])


@pytest.mark.parametrize(("files", "levels"), [(256, ["error"]), (450, ["warning"])])
def test_so_few_open_files_that_haproxy_cannot_start_are_an_error(files, levels):
    assert [each.level for each in found(replace(HEAD, open_files=files))] == levels


def busy(what: str, serves: bool = False) -> NodeFacts:
    return replace(HEAD, busy=(BusyPort(what, 8000, "nginx, pid 7", serves),))


@pytest.mark.parametrize(
    ("what", "level", "setting"),
    [
        ("http", "error", "gateway.port"),
        ("haproxy_stats", "error", "gateway.haproxy_stats_port"),
        ("metrics", "warning", "gateway.metrics_port"),
    ],
)
def test_a_port_that_another_has_is_named_with_its_setting(what, level, setting):
    finding = only(busy(what))
    assert (finding.level, finding.topic) == (level, "ports")
    assert finding.message == f"port 8000 ({setting}) is taken by nginx, pid 7"


def test_a_port_that_serve_itself_has_is_fine():
    assert found(busy("http", serves=True)) == []


@pytest.mark.parametrize(("first", "said"), [(15_000, True), (31_000, True), (31_001, False)])
def test_outgoing_connections_must_leave_gateways_their_ports(first, said):
    topics = [each.topic for each in found(replace(HEAD, local_ports=(first, 60_999)))]
    assert topics == (["ports"] if said else [])


@pytest.mark.parametrize(
    ("error", "mend"),
    [
        ("ModuleNotFoundError: No module named 'deployments'", "install headrace 0.1.0"),
        ("did not answer within 60 s", "raylet logs"),
    ],
)
def test_a_node_that_cannot_be_asked_is_an_error_and_hides_nothing_else(error, mend):
    silent = NodeFacts("c3", "10.0.0.3", False, error=error)
    last = replace(WORKER, wrapper="broken")
    said = found(HEAD, silent, last)
    assert [(each.level, each.node) for each in said] == [
        ("error", "10.0.0.3"), ("error", "10.0.0.2"),
    ]  # fmt: skip
    assert mend in said[0].mend


def test_a_cluster_whose_head_is_silent_is_an_error():
    assert only(WORKER).message == "the head node was not among those asked"


def test_errors_come_first():
    levels = [each.level for each in found(replace(HEAD, open_files=1024, wrapper="broken"))]
    assert levels == ["error", "warning"]


def test_a_dashboard_that_lets_anybody_in_is_a_warning():
    assert of_token(False) == []
    assert [each.level for each in of_token(True)] == ["warning"]


def test_nodes_are_asked_for_the_addresses_of_the_settings():
    gateway = GatewaySettings(ingress="haproxy", host="0.0.0.0", haproxy_stats_port=1234)
    asked = node_query(gateway, WANTED)
    assert asked.ports == {
        "http": ("0.0.0.0", 8000),
        "haproxy_stats": ("127.0.0.1", 1234),
        "haproxy_metrics": ("127.0.0.1", 9101),
        "metrics": ("0.0.0.0", 9400),
    }
    assert "RAY_AUTH_TOKEN" not in asked.variables
