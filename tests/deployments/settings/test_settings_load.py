"""A settings file is either loaded whole or refused with every mistake, each in its place."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from settings_files import DEVICE, HASH_1, HASH_2, mistakes, write

from deployments.settings.gateway import GatewaySettings, one_machines_ingress
from deployments.settings.plain import SettingsErrors, digest, dump, parse, with_address
from deployments.settings_files.load import load
from yaml_document.document import MAX_BYTES
from yaml_document.mistakes import Mistake


def test_smallest_file_is_all_defaults(tmp_path: Path) -> None:
    settings = load(write(tmp_path, DEVICE))
    model = settings.models["device"]
    assert model.timeout_s == pytest.approx(1.0)
    assert (model.batch.max_size, model.batch.max_tokens) == (32, 8192)
    assert (settings.gateway.host, settings.gateway.port) == ("127.0.0.1", 8000)
    assert settings.tenants == {}


def test_empty_section_is_all_defaults(tmp_path: Path) -> None:
    settings = load(write(tmp_path, DEVICE + "    batch:\n    options:\ngateway:\n"))
    assert settings.models["device"].batch.max_size == 32
    assert settings.gateway.port == 8000


@pytest.mark.parametrize("written", ["off", "Off", "'off'", "no", "false"])
def test_a_bare_off_is_the_word_though_yaml_reads_a_boolean(tmp_path: Path, written: str) -> None:
    text = (
        f"    admission: {{feasibility: {written}, codel: {written}}}\n"
        f"    hedge: {{mode: {written}}}\n    outliers: {{mode: {written}}}\n"
    )
    model = load(write(tmp_path, DEVICE + text)).models["device"]
    assert model.admission == {"feasibility": "off", "codel": "off"}
    assert model.hedge.mode == model.outliers.mode == "off"


def test_set_timeout_wins_over_ten_times_the_latency(tmp_path: Path) -> None:
    slo = load(write(tmp_path, DEVICE + "    slo: {latency_ms: 50, timeout_ms: 60}")).models
    assert slo["device"].timeout_s == pytest.approx(0.06)


def test_unknown_setting_is_met_with_the_close_one(tmp_path: Path) -> None:
    text = DEVICE + "    batch:\n      max_sizee: 3\n"
    assert mistakes(tmp_path, text) == [
        "5: models.device.batch.max_sizee: unknown setting; did you mean max_size?"
    ]


def test_setting_of_another_section_is_shown_its_place(tmp_path: Path) -> None:
    assert mistakes(tmp_path, DEVICE + "    timeout_ms: 5\n") == [
        "4: models.device.timeout_ms: unknown setting here; did you mean slo.timeout_ms?"
    ]


def test_a_word_where_a_number_belongs_is_like_no_word_of_the_sentence(tmp_path: Path) -> None:
    (only,) = mistakes(tmp_path, DEVICE + "    batch: {max_size: two}\n")
    assert only == "4: models.device.batch.max_size: is 'two'; must be a whole number, 1 to 65536"


def test_unlike_name_lists_what_is_known(tmp_path: Path) -> None:
    (only,) = mistakes(tmp_path, DEVICE + "    queue: {zzz: 1}\n")
    assert only == (
        "4: models.device.queue.zzz: unknown setting; known here: max_rows, preempt_streams"
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "    runtime: synthetik",
            "must be onnxruntime, openvino, tensorrt, torch, vllm, python or synthetic",
        ),
        ("    runtime: synthetik", "did you mean synthetic?"),
        ("    runtime:", "runtime: is empty; must be onnxruntime"),
        ("    batch: {max_size: 0}", "max_size: is 0; must be a whole number, 1 to 65536"),
        ("    batch: {max_size: 65537}", "is 65537; must be a whole number, 1 to 65536"),
        ("    batch: {max_size: '8'}", "is '8'; must be a whole number, 1 to 65536"),
        ("    batch: {max_size: 1.5}", "is 1.5; must be a whole number, 1 to 65536"),
        ("    batch: {max_size: true}", "is true; must be a whole number, 1 to 65536"),
        ("    batch: 7", "batch: is 7; must be a mapping"),
        ("    batch: [1]", "batch: is a list; must be a mapping"),
        ("    slo: {latency_ms: 0}", "is 0; must be a number, above 0 and at most 3600000"),
        ("    slo: {latency_ms: .nan}", "is nan; must be a number"),
        ("    slo: {percentile: 100}", "is 100; must be a number, above 0 and below 100"),
        ("    slo: {latency_ms: 100, timeout_ms: 99}", "must be at least 100"),
        ("    retry: perhaps", "is 'perhaps'; must be true or false"),
        ("    version: 1.0", 'is 1.0; must be text such as "1.0"; write it in quotes'),
        ("    version: 'a/b'", "version: is 'a/b'; must be text"),
        ("    source: x.onnx", "source: must be left out: a synthetic model has no artifact"),
        ("    precision: int4", "is 'int4'; must be fp32, bf16, fp16, int8 or fp8"),
        ("    precision: bf16", "precision: synthetic has no precision 'bf16'"),
        ("    options: {base: 1}", "device.options: "),
        ("    options: {base_ms: -1}", "device.options: "),
        ("    replicas: {num_gpus: 1.5}", "must be below 1 or a whole number of GPUs"),
        ("    lengths: {buckets: [16, 16, 512]}", "buckets[1]: is 16 after 16; edges must ascend"),
        ("    lengths: {buckets: [16, 64]}", "the last edge must equal max (512)"),
        ("    lengths: {buckets: []}", "is empty; must be auto or end with max"),
        ("    lengths: {buckets: autp}", "must be auto, a number of buckets or a list of lengths"),
        ("    lengths: {buckets: 0}", "buckets: is 0; must be auto, a number of buckets from 1 to"),
        ("    lengths: {buckets: 65}", "is 65; must be auto, a number of buckets from 1 to 64"),
        ("    lengths: {buckets: true}", "must be auto, a number of buckets or a list of lengths"),
        ("    policies: {hedging: none}", "must be one of quantile, multiple, got 'none'"),
        ("    policies: {edges: waste}", "must be one of seconds, padding, quantiles, got 'waste'"),
        ("    batch: {max_slo_share: 0}", "is 0; must be a number, above 0 and at most 1"),
        ("    admission: {codel: on}", "codel: is true; must be off, observe or enforce"),
        ("    admission: {codel: {mode: off}}", "codel: is a mode and no section any more; must"),
        ("    admission: off", "admission: is false; must be a mapping"),
        ("    admission: {best: off}", "must be one of feasibility, codel, limit, got 'best'"),
        ("    policies: {admission: [best]}", "must be one of feasibility, best_effort_capacity"),
        ("    policies: {admission: [codel, codel]}", "has a name twice (codel, codel)"),
        ("    policies: {admission: codel}", "policies.admission"),
        ("    policies: {preemption: best}", "must be one of least_urgent, least_work_lost, none"),
        ("    hedge: {mode: enforce}", "is 'enforce'; must be off, hedge or tied"),
        ("    lengths: {buckets: [0, 512]}", "buckets[0]: is 0; must be a whole number"),
        ("    lengths: {buckets: [true, 512]}", "buckets[0]: is True; must be a whole number"),
        ("gateway: {port: 0}", "gateway.port: is 0; must be a whole number, 1 to 65535"),
        ("gateway: {port: 65536}", "gateway.port: is 65536"),
        (
            "gateway: {port: 9400}",
            "metrics_port: uses port 9400, which port uses too; must be another port",
        ),
        ("gateway: {replicas: 2, port: 9401}", "uses port 9401, which port uses too"),
        ("gateway: {haproxy_stats_port: 9101}", "haproxy_metrics_port: uses port 9101"),
        ("gateway: {grpc: {port: 8000}}", "grpc.port: uses port 8000, which port uses too"),
        ("gateway: {replicas: 2, metrics_port: 65535}", "too few ports"),
        ("gateway: {host: 'a b'}", "host: is 'a b'; must be text such as 127.0.0.1"),
        ("gateway: {tracing: {otlp_endpoint: 'x:4318'}}", "such as http://127.0.0.1:4318"),
        ("gateway: {log: {level: warn}}", "must be debug, info, warning or error"),
        ("tenants:", "tenants: is empty; must be a mapping"),
        ("tenants: {a: {weight: 0}}", "tenants.a.weight: is 0; must be a number, 0.01 to 10000"),
        ("tenants: {'a b': {}}", "tenants.a b: is no tenant name"),
        ("gateway: {priorities: [A]}", "priorities[0]: must be 1 to 32 of a-z 0-9 - _"),
        ("gateway: {priorities: [on]}", "priorities[0]: must be 1 to 32 of a-z 0-9 - _"),
        ("gateway: {priorities: []}", "must be a list of 1 to 16 names, the most urgent first"),
        ("gateway: {priorities: [a, b, a]}", "priorities[2]: is a, which is already in the list"),
        ("tenants: {a: {priority: urgent}}", "a.priority: is 'urgent'; must be one of interactive"),
        ("tenants: {a: {rate: {requests_per_s: 0}}}", "is 0; must be a number, above 0"),
        ("tenants: {a: {max_queue_rows: 0}}", "is 0; must be a whole number, 1 to 10000000"),
        ("controllers: {frozen: 1}", "controllers.frozen: is 1; must be true or false"),
        ("tenants: {a: {models: [devise]}}", "models[0]: is 'devise'; must be one of device"),
        ("tenants: {a: {models: [5]}}", "models[0]: is 5; must be text; write it in quotes"),
        ("tenants: {a: {keys: [abc]}}", "keys[0]: must be sha256: followed by 64 digits"),
        (
            f"tenants: {{default: {{keys: ['{HASH_1}']}}}}",
            "default stands for callers without a key",
        ),
    ],
)
def test_each_mistake_says_where_and_what_is_right(
    tmp_path: Path, line: str, expected: str
) -> None:
    text = DEVICE + line + "\n"
    if line.startswith("    runtime"):
        text = DEVICE.replace("    runtime: synthetic\n", line + "\n")
    (only,) = mistakes(tmp_path, text)
    assert expected in only
    assert only.startswith("4: " if text.count("\n") == 4 else "3: ")


def test_missing_setting_is_told_at_its_model(tmp_path: Path) -> None:
    (only,) = mistakes(tmp_path, "models:\n  a:\n    task: embed\n")
    assert only.startswith("2: models.a.runtime: is missing; must be onnxruntime, openvino")


def test_missing_source_is_told_at_its_model(tmp_path: Path) -> None:
    (only,) = mistakes(tmp_path, "models:\n  a:\n    runtime: torch\n")
    assert only.startswith("2: models.a.source: is missing; must be a file or folder")


def test_no_models_at_all_are_refused(tmp_path: Path) -> None:
    assert mistakes(tmp_path, "models: {}\n") == [
        "1: models: declares no model; must have at least one"
    ]


def test_a_server_of_optional_models_alone_is_refused(tmp_path: Path) -> None:
    text = "models:\n  a: {runtime: synthetic, optional: true}\n"
    assert mistakes(tmp_path, text) == [
        "2: models.a.optional: is true for every model; must be false for at least one model, for "
        "which the server's readiness waits"
    ]


def test_all_mistakes_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        "models:\n"
        "  device:\n"
        "    runtime: synthetic\n"
        "    options: {speed: 9}\n"
        "  Other:\n"
        "    runtime: synthetic\n"
        "    retry: 1\n"
        "  missing:\n"
        "    runtime: openvino\n"
        "    source: nowhere.onnx\n"
        "tenants:\n"
        f"  a: {{keys: ['{HASH_1}'], models: [gone]}}\n"
        f"  b: {{keys: ['{HASH_1}']}}\n"
        "gateway:\n"
        "  port: 9400\n"
        "  port: 9401\n",
    )
    assert [each.split(": ")[:2] for each in found] == [
        ["4", "models.device.options"],
        ["5", "models.Other"],
        ["7", "models.Other.retry"],
        ["10", "models.missing.source"],
        ["12", "tenants.a.models[0]"],
        ["13", "tenants.b.keys[0]"],
        ["14", "gateway.metrics_port"],
        ["16", "gateway.port"],
    ]


def test_direct_ingress_frees_haproxys_ports(tmp_path: Path) -> None:
    text = DEVICE + "gateway: {ingress: direct, port: 8404, metrics_port: 9101}\n"
    assert load(write(tmp_path, text)).gateway.port == 8404


@pytest.mark.parametrize(
    ("gateway", "expected"),
    [
        ({}, "direct"),
        ({"ingress": "haproxy"}, "haproxy"),
        ({"replicas": 2}, "haproxy"),
        ({"compression": True}, "haproxy"),
        ({"grpc": {}}, "haproxy"),
    ],
)
def test_one_gateway_of_one_machine_takes_its_callers_itself(gateway: Any, expected: str) -> None:
    assert one_machines_ingress(GatewaySettings.model_validate(gateway)) == expected


@pytest.mark.parametrize(
    ("other", "said"),
    [("replicas: 2", "takes one gateway"), ("compression: true", "compresses nothing"),
     ("grpc: {}", "gRPC needs HAProxy")],
)  # fmt: skip
def test_what_direct_does_not_do_is_refused_with_it(tmp_path: Path, other: str, said: str) -> None:
    with pytest.raises(SettingsErrors, match=said) as wrong:
        load(write(tmp_path, DEVICE + f"gateway: {{ingress: direct, {other}}}\n"))
    assert wrong.value.mistakes[0].path == "gateway.ingress"


@pytest.mark.parametrize("length", [1, 2, 63])
def test_model_names_up_to_the_limit_are_fine(tmp_path: Path, length: int) -> None:
    name = "a" * length
    assert name in load(write(tmp_path, DEVICE.replace("device", name))).models


@pytest.mark.parametrize("name", ["a" * 64, "-a", "a.", "A", "a/b", "ä", "'a\\n'", "''"])
def test_names_that_do_not_fit_a_url_are_refused(tmp_path: Path, name: str) -> None:
    (only,) = mistakes(tmp_path, DEVICE.replace("device", name.replace("'", '"')))
    assert "is no model name; must be 1 to 63 of a-z 0-9 - . _" in only


def test_names_that_yaml_takes_for_something_else_stay_text(tmp_path: Path) -> None:
    text = "models:\n  1: {runtime: synthetic}\n  on: {runtime: synthetic}\n"
    assert list(load(write(tmp_path, text)).models) == ["1", "on"]


def test_relative_source_is_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "m.onnx").write_bytes(b"")
    text = "models:\n  a: {runtime: openvino, source: weights/m.onnx}\n"
    settings = load(write(tmp_path, text), here=False)
    assert settings.models["a"].source == str((tmp_path / "weights" / "m.onnx").resolve())


def test_missing_artifact_is_named_unless_it_is_elsewhere(tmp_path: Path) -> None:
    text = "models:\n  a:\n    runtime: openvino\n    source: m.onnx\n"
    (only,) = mistakes(tmp_path, text)
    assert only == (
        f"4: models.a.source: no file or folder '{(tmp_path / 'm.onnx').resolve()}'; "
        f"{tmp_path} holds some.yaml"
    )
    assert load(tmp_path / "some.yaml", here=False).models["a"].source


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", ": is empty; must have models:"),
        (b"# nothing\n---\n", ": is empty; must have models:"),
        (b"models", ":1: must be a mapping that has models:"),
        (b"\n- a\n", ":2: must be a mapping that has models:"),
        (b"models:\n  a: \xff\n", ":2: byte 13 is no UTF-8; save the file as UTF-8"),
        (b"models:\n\ta: 1\n", ":2: is indented with a tab; YAML allows spaces only"),
        (b"models: [\n", ":2: is no YAML: while parsing a flow node, "),
        (b"models: \x01\n", ":1: character 1 may not stand in YAML"),
        (b"a: 1\n---\nb: 2\n", ":2: is no YAML: expected a single document"),
        (b"a: *b\n", ":1: is no YAML: found undefined alias 'b'"),
    ],
)
def test_file_that_holds_no_settings_is_told_so(tmp_path: Path, body: bytes, expected: str) -> None:
    path = tmp_path / "some.yaml"
    path.write_bytes(body)
    with pytest.raises(SettingsErrors) as refused:
        load(path)
    assert str(refused.value).startswith(f"{path}{expected}")


def test_missing_file_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(SettingsErrors, match=r"none\.yaml: cannot be read: no such file"):
        load(tmp_path / "none.yaml")


def test_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsErrors, match="cannot be read: is a directory"):
        load(tmp_path)


def test_endless_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    with pytest.raises(SettingsErrors, match="is larger than"):
        load(path)


def test_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + DEVICE.encode())
    assert "device" in load(path).models


FULL = (
    DEVICE
    + "    lengths: {max: 64, buckets: [32, 64]}\n    options: {base_ms: 3}\n"
    + f"tenants: {{a: {{keys: ['{HASH_1}', '{HASH_2}'], models: [device]}}}}\n"
)


def test_dump_is_plain_and_parse_takes_it_back(tmp_path: Path) -> None:
    settings = load(write(tmp_path, FULL))
    assert parse(json.loads(json.dumps(dump(settings)))) == settings
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_parse_tells_mistakes_without_a_file() -> None:
    with pytest.raises(SettingsErrors) as refused:
        parse({"models": {"a": {"runtime": "synthetic", "retry": 3}}})
    assert str(refused.value) == "models.a.retry: is 3; must be true or false"


def test_settings_cannot_be_changed(tmp_path: Path) -> None:
    settings = load(write(tmp_path, FULL))
    with pytest.raises(ValueError, match="frozen"):
        settings.gateway.port = 1


def test_errors_survive_a_process_boundary() -> None:
    error = SettingsErrors([Mistake("f", 2, "a", "b"), Mistake("f", 1, "a", "b")])
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == "f:1: a: b\nf:2: a: b"
    assert again.mistakes == error.mistakes


def test_address_of_the_command_line_wins(tmp_path: Path) -> None:
    settings = load(write(tmp_path, FULL))
    moved = with_address(settings, {"host": "0.0.0.0", "port": 8001})
    assert (moved.gateway.host, moved.gateway.port) == ("0.0.0.0", 8001)
    assert moved.models == settings.models
    assert with_address(settings, {}) == settings


def test_port_of_the_command_line_may_not_collide(tmp_path: Path) -> None:
    with pytest.raises(SettingsErrors, match="uses port 8404, which port uses too"):
        with_address(load(write(tmp_path, FULL)), {"port": 8404})


def model_of(folder: Path, *lines: str):  # type: ignore[no-untyped-def]
    return load(write(folder, DEVICE + "".join(f"    {line}\n" for line in lines))).models["device"]


def test_version_follows_what_shapes_answers_alone(tmp_path: Path) -> None:
    plain = digest(model_of(tmp_path), "d1")
    assert len(plain) == 12
    assert digest(model_of(tmp_path), "d2") != plain
    assert digest(model_of(tmp_path, "options: {base_ms: 3}"), "d1") != plain
    assert digest(model_of(tmp_path, "lengths: {max: 64}"), "d1") != plain
    assert digest(model_of(tmp_path, "lengths: {buckets: [512]}"), "d1") == plain
    assert digest(model_of(tmp_path, "batch: {max_size: 1}"), "d1") == plain
    assert digest(model_of(tmp_path, "admission: {codel: off}"), "d1") == plain
    assert digest(model_of(tmp_path, "hedge: {mode: hedge}"), "d1") == plain
    assert digest(model_of(tmp_path, "replicas: {count: 2}"), "d1") == plain
