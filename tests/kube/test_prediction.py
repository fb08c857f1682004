"""What `helm test` runs and the notes tell: a real request, for a model that it fits."""

from __future__ import annotations

import runpy
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import yaml

from tests.kube.chart import CHART, Values, objects, rendered

SCRIPT = CHART / "files" / "predict.py"
GROUPS = [{"name": "cpu", "cpu": 4, "memory": "4Gi"}]
ANSWERS: list[tuple[int, bytes]] = []
ASKED: list[tuple[str, str | None, bytes]] = []


class _Gateway(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        ASKED.append((self.path, self.headers["authorization"], body))
        code, answer = ANSWERS.pop(0)
        self.send_response(code)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One that gives `ANSWERS` in turn; nobody waits between two tries."""
    server = HTTPServer(("127.0.0.1", 0), _Gateway)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setenv("URL", f"http://127.0.0.1:{server.server_port}/v1/embeddings")
    monkeypatch.setenv("BODY", '{"input": "x"}')
    ASKED.clear()
    ANSWERS.clear()
    yield
    server.shutdown()
    thread.join()


def test_waits_while_the_model_is_not_ready_and_prints_the_answer(
    gateway: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KEY", "hr_key")
    ANSWERS.extend([(503, b"starting"), (200, b'{"data": [{"embedding": [0.5]}]}')])
    runpy.run_path(str(SCRIPT))
    assert "not ready yet: starting" in (said := capsys.readouterr().out)
    assert said.endswith('[{"embedding": [0.5]}]\n')
    assert ASKED == [("/v1/embeddings", "Bearer hr_key", b'{"input": "x"}')] * 2


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, b"who are you?"), "401: who are you?"),
        ((200, b"{}"), "an empty answer: {}"),
        ((200, b'{"data": [], "model": "m"}'), "an empty answer: {'data': \\[]"),
        ((200, b'{"choices": []}'), "an empty answer: {'choices': \\[]}"),
        ((200, b'{"outputs": [], "model_name": "m"}'), "an empty answer: {'outputs': \\[]"),
        ((200, b"[]"), "an empty answer: \\[]"),
        ((200, b"<html>"), "the answer is no JSON: "),
        ((200, b"\xff\xfe{"), "the answer is no JSON: "),
    ],
)
def test_fails_on_another_answer(gateway: None, answer: tuple[int, bytes], said: str) -> None:
    ANSWERS.append(answer)
    with pytest.raises(SystemExit, match=said):
        runpy.run_path(str(SCRIPT))


def test_it_gives_up_when_its_time_is_over(gateway: None, monkeypatch: pytest.MonkeyPatch) -> None:
    now, began = [0.0], time.monotonic()
    monkeypatch.setattr(time, "sleep", lambda seconds: now.append(now[-1] + seconds))
    monkeypatch.setattr(time, "monotonic", lambda: began + now[-1])
    ANSWERS.extend([(503, b"starting")] * 40)
    with pytest.raises(SystemExit, match="no prediction within 270 s"):
        runpy.run_path(str(SCRIPT))
    assert len(ASKED) == 27


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ({"runtime": "synthetic"}, "/v2/models/m/infer"),
        ({"runtime": "synthetic", "task": "generate"}, "/v1/completions"),
        ({"runtime": "openvino", "source": "m", "task": "embed"}, "/v1/embeddings"),
    ],
)
def test_the_request_fits_the_model(model: dict[str, Any], path: str) -> None:
    values: Values = {"models": {"m": model}, "workerGroups": GROUPS}
    (pod,) = (each for each in objects(values) if each["kind"] == "Pod")
    (container,) = pod["spec"]["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["URL"] == f"http://demo-headrace-serve-svc:8000{path}"
    assert container["args"] == [SCRIPT.read_text()]
    assert f"http://127.0.0.1:8000{path}" in rendered(values)["NOTES.txt"]


def test_a_model_that_no_request_fits_has_no_test_and_the_notes_say_so() -> None:
    model = {"runtime": "onnxruntime", "source": "m.onnx"}
    values: Values = {"models": {"m": model}, "workerGroups": GROUPS}
    assert "Pod" not in {each["kind"] for each in objects(values)}
    assert "`helm test` has nothing to ask" in rendered(values)["NOTES.txt"]


def test_an_optional_model_is_asked_last() -> None:
    models = {"a": {"runtime": "synthetic", "optional": True}, "b": {"runtime": "synthetic"}}
    values: Values = {"models": models, "workerGroups": GROUPS}
    assert "/v2/models/b/infer" in rendered(values)["tests/predict.yaml"]
    only: Values = {"models": {"a": models["a"]}, "workerGroups": GROUPS}
    assert "/v2/models/a/infer" in rendered(only)["tests/predict.yaml"]


KEYS: Values = {"keys": ["sha256:" + "a" * 64]}


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        ({}, False),
        ({"tenants": {"acme": {}}}, False),
        ({"tenants": {"acme": KEYS}}, True),
        ({"tenants": {"acme": {"keys": []}}}, True),
        ({"tenants": {"acme": KEYS, "default": {}}}, False),
        ({"gateway": {"auth": "required"}}, True),
        ({"gateway": {"auth": "required"}, "tenants": {"default": {}}}, False),
        (
            {
                "gateway": {"tenants_path": "/etc/tenants"},
                "tenantFiles": {"config": {"tenants": {"acme": KEYS}}},
            },
            True,
        ),
        (
            {
                "gateway": {"tenants_path": "/etc/tenants"},
                "tenantFiles": {"existingSecrets": ["acme"]},
            },
            True,
        ),
        (
            {
                "gateway": {"tenants_path": "/etc/tenants"},
                "tenantFiles": {"config": {"tenants": {"acme": {}}}},
            },
            True,
        ),
    ],
)
def test_no_pod_asks_without_the_key_that_it_needs(given: Values, needed: bool) -> None:
    values: Values = {"models": {"m": {"runtime": "synthetic"}}, "workerGroups": GROUPS} | given
    texts = rendered(values)
    assert ("kind: Pod\n" in texts["tests/predict.yaml"]) is not needed
    assert ("-H 'authorization: Bearer KEY'" in texts["NOTES.txt"]) is needed
    assert ("set test.existingSecret" in texts["NOTES.txt"]) is needed
    assert ('-test"\n' in texts["networkpolicies.yaml"]) is not needed
    with_key = rendered(values | {"test": {"existingSecret": "acme"}})
    assert "kind: Pod\n" in with_key["tests/predict.yaml"]
    assert "helm -n serving test demo" in with_key["NOTES.txt"]


def test_the_notes_name_layouts_and_the_token(plain: Values) -> None:
    layouts = {"configs": {"mine": [{"devices": "all", "mig-enabled": False}]}}
    notes = rendered(plain | {"migLayouts": layouts, "auth": {"existingSecret": "token"}})[
        "NOTES.txt"
    ]
    assert "kubectl label node NODE nvidia.com/mig.config=mine --overwrite" in notes
    assert "get secret token -o jsonpath" in notes
    assert "Ray's dashboard" not in rendered(plain | {"auth": {"enabled": False}})["NOTES.txt"]


def test_further_objects_are_templates_as_text_or_as_data(plain: Values) -> None:
    text = 'apiVersion: v1\nkind: Secret\nmetadata: {name: "{{ .Release.Name }}-a"}\n'
    data = yaml.safe_load(text.replace("-a", "-b"))
    made = objects(plain | {"extraObjects": [text, data]})
    assert {e["metadata"]["name"] for e in made if e["kind"] == "Secret"} == {"demo-a", "demo-b"}
