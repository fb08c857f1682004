"""Are all servers asked for the same work in their own words, and does the device keep time?"""

import json

import pytest

from loadtests.peers import adapters, catalogue, device
from loadtests.peers import options as asked
from loadtests.peers.device import FakeDevice, Speed
from loadtests.peers.triton import ragged


def test_device_takes_a_base_a_row_and_a_padded_token():
    speed = Speed(base_ms=5, per_row_ms=0.2, per_token_us=8)
    assert speed.seconds(1, 0) == pytest.approx(0.0052)
    assert speed.seconds(32, 100) == pytest.approx(0.005 + 0.0064 + 0.0256)


def test_device_pads_a_batch_to_its_longest_row(monkeypatch):
    waits = []
    monkeypatch.setattr(device, "wait_until", waits.append)
    monkeypatch.setattr(device.time, "perf_counter", lambda: 100.0)
    rows = [[1, 2, 3], [4] * 10]
    assert FakeDevice(Speed()).run(rows) == [6.0, 40.0]
    assert waits == [pytest.approx(100.0 + Speed().seconds(2, 10))]


@pytest.mark.parametrize(
    ("adapter", "body", "answer"),
    [
        (adapters.RAY_SERVE, {"item": [1, 2]}, {"answer": 3.0}),
        (adapters.LITSERVE, {"item": [1, 2]}, {"answer": 3.0}),
        (adapters.BENTOML, {"items": [[1, 2]]}, [3.0]),
        (
            adapters.MLSERVER,
            {"inputs": [{"name": "item", "shape": [1], "datatype": "BYTES", "data": ["[1,2]"]}]},
            {"outputs": [{"name": "answer", "data": [3.0]}]},
        ),
        (
            adapters.TENSORS,
            {"inputs": [{"name": "ids", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]}]},
            {"outputs": [{"name": "sum", "data": [3.0]}]},
        ),
    ],
)
def test_ids_are_sent_and_sums_read_in_each_servers_shape(adapter, body, answer):
    assert json.loads(adapter.encode([1, 2])) == body
    assert adapter.decode(json.dumps(answer).encode()) == 3.0


def test_texts_are_sent_in_openais_shape():
    adapter = adapters.EMBEDDINGS
    assert json.loads(adapter.encode("a b")) == {"model": "minilm", "input": "a b"}
    answer = {"data": [{"embedding": [0.6, 0.8], "index": 0}]}
    assert adapter.decode(json.dumps(answer).encode()) == [0.6, 0.8]


def test_texts_travel_as_one_bytes_element():
    assert json.loads(adapters.MLSERVER.encode("a b"))["inputs"][0]["data"] == ["a b"]
    tensor = json.loads(adapters.TEXT_TENSORS.encode("a b"))["inputs"][0]
    assert (tensor["shape"], tensor["data"]) == ([1, 1], ["a b"])


def test_every_peer_has_its_file_its_environment_and_its_tuning():
    for peer in catalogue.PEERS.values():
        module = catalogue.ROOT / (peer.module.replace(".", "/") + ".py")
        assert module.is_file()
        assert peer.venv is None or peer.venv in catalogue.venvs.PEERS
        assert peer.tuning
        assert set(peer.batch) >= set(peer.works)


def test_command_names_port_work_batch_and_variant():
    peer = catalogue.PEERS["ray-serve-raised"]
    command = catalogue.command_of(peer, 8100, asked.DEVICE, 4)
    assert command[1:] == [
        *("-m", "loadtests.peers.ray_serve.serve", "--port", "8100"),
        *("--work", "device", "--batch", "4", "--variant", "raised"),
    ]
    assert asked.parse("", command[3:]) == asked.PeerOptions(8100, "device", 4, "raised")


def test_throughput_environment_is_one_starts_own():
    one, two = (catalogue.environ_of(catalogue.PEERS["ray-serve-throughput"]) for _ in range(2))
    folders = {found["RAY_SERVE_HAPROXY_SERVER_STATE_BASE"] for found in (one, two)}
    assert len(folders) == 2
    assert one["RAY_SERVE_THROUGHPUT_OPTIMIZED"] == "1"
    assert "RAY_SERVE_THROUGHPUT_OPTIMIZED" not in catalogue.environ_of(
        catalogue.PEERS["ray-serve-defaults"]
    )


@pytest.mark.parametrize("work", asked.WORKS)
def test_triton_is_configured_for_the_work(work):
    found = ragged.config(asked.PeerOptions(8100, work, 6))
    assert f'name: "{work}"' in found
    assert "max_batch_size: 6" in found
    assert ("allow_ragged_batch: true" in found) == (work == asked.DEVICE)
    assert found.count("{") == found.count("}")
