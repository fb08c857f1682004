"""Adapters of a real server: loaded when they are asked for, and changed by an operator while the
replicas that ran before run on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from served import Server, http, metric

from tests.runtimes.adapter_folders import write_adapter

pytestmark = pytest.mark.integration


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
    serve: Any, tmp_path: Path
) -> None:
    for seed, name in enumerate(("law", "sql"), 1):
        write_adapter(tmp_path / name, 16, seed=seed)
    server: Server = serve(
        {
            "chat": {
                "runtime": "synthetic",
                "task": "generate",
                "lengths": {"max": 1000},
                "adapters": {"law": str(tmp_path / "law")},
                "options": {"base_ms": 5},
            }
        }
    )
    server.start()
    before = server.replicas("chat")
    assert before
    status, plain = says(server, "chat")
    assert status == 200
    status, law = says(server, "chat:law")
    assert status == 200
    assert law != plain
    assert says(server, "chat:sql")[0] == 404

    done = server.headrace("adapter", "add", "chat", "sql", str(tmp_path / "sql"))
    assert done.returncode == 0, done.stderr
    server.until(lambda: says(server, "chat:sql")[0] == 200, 30)
    assert says(server, "chat:sql")[1] not in (plain, law)
    assert {"chat", "chat:law", "chat:sql"} <= listed(server)
    told = server.headrace("adapter", "list", "chat").stdout
    assert f"chat:sql  {tmp_path / 'sql'}  (by hand)" in told

    done = server.headrace("adapter", "remove", "chat", "law")
    assert done.returncode == 0, done.stderr
    server.until(lambda: says(server, "chat:law")[0] == 404, 30)
    assert "chat:law" not in listed(server)
    page = http.get(f"{server.url}/metrics").text
    assert metric(page, "headrace_replica_adapter_loads_total", model="chat") == 2
    assert server.replicas("chat") == before

    wrong = server.headrace("adapter", "add", "chat", "no", str(tmp_path))
    assert wrong.returncode == 1
    assert "is no LoRA adapter" in wrong.stderr
