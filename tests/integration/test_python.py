"""examples/python.yaml as it is served: four classes, one of them with a package of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from served import Server, http

import examples

pytestmark = pytest.mark.integration
FOLDER = Path(examples.__file__).parent
SHARED = {
    name: {**model, "source": f"{FOLDER}/{model['source']}", "slo": {"latency_ms": 20_000}}
    for name, model in yaml.safe_load((FOLDER / "python.yaml").read_text())["models"].items()
}
SHARED["flowers"] = SHARED.pop("iris")  # which another page's model is called too
FLOWERS = [[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3]]


@pytest.fixture(scope="module")
def server(shared) -> Server:
    made: Server = shared
    return made


def predicted(server: Server, model: str, *rows: Any) -> httpx.Response:
    url = f"{server.url}/v1/models/{model}:predict"
    return http.post(url, json={"instances": rows}, timeout=60)


def test_tabular_classes_answer_and_one_brings_its_package(server):
    found = predicted(server, "flowers", *FLOWERS).json()["predictions"]
    assert [row["species"] for row in found] == ["setosa", "virginica"]
    assert predicted(server, "boosted", *FLOWERS).json()["predictions"] == [0, 2]


def test_raw_texts_are_prepared_by_the_class_and_fail_singly(server):
    rows = ["the wheel of the river", "der bauer mahlt das"]
    found = predicted(server, "language", *rows).json()["predictions"]
    assert [row["language"] for row in found] == ["en", "de"]
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["la roue du moulin"]}
    infer = f"{server.url}/v2/models/language/infer"
    answer = http.post(infer, json={"inputs": [tensor]}, timeout=60).json()
    assert answer["outputs"][0]["data"] == ["fr"]
    failed = predicted(server, "language", "123")
    assert (failed.status_code, failed.json()["error"]) == (400, "the text has no letters")
    long = predicted(server, "language", "a" * 3000)
    assert (long.status_code, "is 750 long" in long.text) == (400, True)


def test_rows_of_an_async_class_wait_together(server):
    assert predicted(server, "lookup", 1).json()["predictions"] == ["value of 1"]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda key: predicted(server, "lookup", key, key + 1), range(64)))
    assert [answer.json()["predictions"][1] for answer in answers] == [
        f"value of {key + 1}" for key in range(64)
    ]
