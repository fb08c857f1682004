"""Adapters of a real server: loaded when they are asked for, and changed by an operator while the
replicas that ran before run on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from served import Server, http, metric, synthetic

from tests.runtimes.adapter_folders import write_adapter

pytestmark = pytest.mark.integration


def adapted(folder: Path) -> dict[str, Any]:
    write_adapter(folder / "law", 16, seed=1)
    return {
        "adapted": synthetic(
            task="generate",
            slo={"ttft_ms": 20_000},
            lengths={"max": 1000},
            adapters={"law": str(folder / "law")},
            options={"base_ms": 5},
        )
    }


SHARED = adapted


def says(server: Server, model: str) -> tuple[int, str]:
    body = {"model": model, "prompt": "one two", "max_tokens": 4}
    answer = http.post(f"{server.url}/v1/completions", json=body, timeout=30)
    if answer.status_code != 200:
        return answer.status_code, ""
    page = answer.json()
    assert page["model"] == model
    return 200, page["choices"][0]["text"]


def listed(server: Server) -> set[str]:
    return {each["id"] for each in http.get(f"{server.url}/v1/models").json()["data"]}


def test_adapters_are_added_and_taken_out_under_a_running_engine(
    shared: Server, tmp_path: Path
) -> None:
    server = shared
    write_adapter(tmp_path / "sql", 16, seed=2)
    before = server.replicas("adapted")
    assert before
    status, plain = says(server, "adapted")
    assert status == 200
    status, law = says(server, "adapted:law")
    assert status == 200
    assert law != plain
    assert says(server, "adapted:sql")[0] == 404

    done = server.headrace("adapter", "add", "adapted", "sql", str(tmp_path / "sql"))
    assert done.returncode == 0, done.stderr
    server.until(lambda: says(server, "adapted:sql")[0] == 200, 30)
    assert says(server, "adapted:sql")[1] not in (plain, law)
    assert {"adapted", "adapted:law", "adapted:sql"} <= listed(server)
    told = server.headrace("adapter", "list", "adapted").stdout
    assert f"adapted:sql  {tmp_path / 'sql'}  (by hand)" in told

    done = server.headrace("adapter", "remove", "adapted", "law")
    assert done.returncode == 0, done.stderr
    server.until(lambda: says(server, "adapted:law")[0] == 404, 30)
    assert "adapted:law" not in listed(server)
    page = http.get(f"{server.url}/metrics").text
    assert metric(page, "headrace_replica_adapter_loads_total", model="adapted") == 2
    assert server.replicas("adapted") == before

    wrong = server.headrace("adapter", "add", "adapted", "no", str(tmp_path))
    assert wrong.returncode == 1
    assert "is no LoRA adapter" in wrong.stderr
