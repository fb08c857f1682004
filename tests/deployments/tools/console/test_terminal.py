"""What is shown while models start, and the line to try is one that the model answers."""

from __future__ import annotations

import io
import json
import shlex
from typing import Any

import pytest
from rich.console import Console

from deployments.contract.description import (
    Classes,
    EmbeddingChoices,
    Generating,
    ModelDescription,
)
from deployments.control.supervisor.host_process import ready_message, try_line
from deployments.tools.console.terminal import StartupDisplay
from runtimes.types import TensorSpec, TokenVectors
from tests.deployments.conftest import described as plainly

IDS = TensorSpec("ids", "INT64", (-1, -1))
MASK = TensorSpec("mask", "INT64", (-1, -1))
URL = "http://127.0.0.1:8000"


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def described(*inputs: TensorSpec, **changes: Any) -> ModelDescription:
    changes = {"name": "m", "max_length": 512, "bucket_edges": (512,), **changes}
    return plainly(inputs=inputs or (IDS,), **changes)


def body_of(line: str) -> tuple[str, dict[str, object]]:
    """URL and body, as the shell would pass them to curl."""
    words = shlex.split(line)
    assert words[:2] == ["curl", "-s"]
    return words[2], json.loads(words[words.index("-d") + 1])


def plain(width: int = 200) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width, force_terminal=False), out


def test_without_a_terminal_each_phase_is_one_line() -> None:
    clock, (console, out) = Clock(), plain()
    with StartupDisplay(["m", "n"], console=console, clock=clock) as progress:
        progress.update("m", "staging", 0.1)
        progress.update("m", "staging", 0.9)
        clock.now += 1.5
        progress.update("m", "compiling")
        progress.update("n", "staging")
        clock.now += 1
        progress.update("m", "ready")
        progress.update("n", "failed", note="no such file")
    assert out.getvalue().splitlines() == [
        "m: staging (0.0 s)",
        "m: compiling (1.5 s)",
        "n: staging (1.5 s)",
        "m: ready (2.5 s)",
        "n: failed: no such file (2.5 s)",
    ]


def test_phases_never_go_back() -> None:
    console, out = plain()
    with StartupDisplay(["m"], console=console, clock=Clock()) as progress:
        for phase in ("warming", "staging", "unheard of", "ready", "warming", "failed"):
            progress.update("m", phase)
    assert out.getvalue().splitlines() == ["m: warming (0.0 s)", "m: ready (0.0 s)"]


def test_a_phase_that_lasts_is_said_again_with_its_reason() -> None:
    console, out = plain()
    clock = Clock()
    with StartupDisplay(["m", "n"], console=console, clock=clock) as progress:
        progress.server("starting Ray")
        clock.now += 4.9
        progress.tick()
        assert out.getvalue() == ""
        clock.now += 0.1
        progress.tick()
        progress.update("m", "starting", note="waits for 1 GPU")
        progress.update("n", "compiling", 0.4)
        clock.now += 5
        progress.tick()
        progress.update("m", "ready")
        progress.update("n", "failed", note="no file")
        clock.now += 60
        progress.tick()
    assert out.getvalue().splitlines() == [
        "m, n: starting: starting Ray (5.0 s)",
        "n: compiling (5.0 s)",
        "m: starting: waits for 1 GPU (10.0 s)",
        "n: compiling 40%: the backend loads and compiles it (10.0 s)",
        "m: ready (10.0 s)",
        "n: failed: no file (10.0 s)",
    ]


def test_terminal_shows_every_phase_with_its_seconds() -> None:
    clock, out = Clock(), io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, color_system=None)
    with StartupDisplay(["m", "n"], console=console, clock=clock) as progress:
        progress.update("m", "staging")
        clock.now += 2
        progress.update("m", "warming", 0.5)
        progress.update("n", "failed", note="[no] markup")
        clock.now += 3
    last = out.getvalue().split("\n")
    assert any("staging 2.0 s" in line and "warming 50% 3.0 s" in line for line in last)
    assert any("failed: [no] markup" in line for line in last)


def test_embedding_model_is_tried_with_a_text() -> None:
    url, body = body_of(try_line(described(task="embed", tokenizer_digest="d"), URL + "/"))
    assert url == f"{URL}/v1/embeddings"
    assert body["model"] == "m"
    assert isinstance(body["input"], str)


@pytest.mark.parametrize(
    ("changes", "path", "key"),
    [
        (
            {"embedding": EmbeddingChoices(), "token_vectors": TokenVectors()},
            *("/pooling", "input"),
        ),
        ({"embedding": EmbeddingChoices(indices_output="i")}, "/embed_sparse", "inputs"),
    ],
)
def test_vectors_of_another_kind_are_tried_where_they_are(
    changes: dict[str, object], path: str, key: str
) -> None:
    model = described(task="embed", tokenizer_digest="d", **changes)
    url, body = body_of(try_line(model, URL))
    assert url == f"{URL}{path}"
    assert isinstance(body[key], str)


def test_model_without_a_tokeniser_is_tried_with_ids() -> None:
    url, body = body_of(try_line(described(task="embed"), URL))
    assert url == f"{URL}/v2/models/m/infer"
    assert body == {
        "inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 4], "data": [[1, 2, 3, 4]]}]
    }


def test_optional_inputs_are_left_out() -> None:
    _, body = body_of(try_line(described(IDS, MASK, optional_inputs=("mask",)), URL))
    assert [each["name"] for each in body["inputs"]] == ["ids"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("datatype", "data"),
    [("BYTES", ["text"] * 2), ("FP32", [0.5] * 2), ("BOOL", [True] * 2), ("UINT8", [1, 2])],
)
def test_values_are_of_the_inputs_type(datatype: str, data: list[object]) -> None:
    _, body = body_of(try_line(described(TensorSpec("x", datatype, (-1, 2))), URL))
    only = body["inputs"][0]  # type: ignore[index]
    assert (only["shape"], only["data"]) == ([1, 2], [data])


def test_model_whose_input_has_no_json_form_is_asked_for_its_page() -> None:
    line = try_line(described(TensorSpec("x", "BF16", (-1, 2))), URL)
    assert line == f"curl -s {URL}/v2/models/m"


def test_dynamic_axes_are_within_the_models_length() -> None:
    _, body = body_of(try_line(described(max_length=2), URL))
    assert body["inputs"][0]["shape"] == [1, 2]  # type: ignore[index]


def test_a_model_that_classifies_or_chats_is_tried_by_its_own_call() -> None:
    classes = Classes("logits", ("a", "b"), 1, 1.0, 0.0, False)
    told = described(task="classify", classes=classes, tokenizer_digest="t")
    assert body_of(try_line(told, URL)) == (
        f"{URL}/v1/models/m:classify",
        {"instances": ["a short text"]},
    )
    writes = described(task="generate", generating=Generating(64, 64, 2))
    url, body = body_of(try_line(writes, URL))
    assert (url, body["model"], body["stream"]) == (f"{URL}/v1/chat/completions", "m", False)


def test_what_is_to_be_pasted_asks_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")  # no proxy of the user's
    monkeypatch.setenv("no_proxy", "localhost")
    assert "--noproxy" not in try_line(described(), URL)
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    assert try_line(described(), URL).startswith("curl -s --noproxy '*' http://")


@pytest.mark.parametrize(("values", "tried"), [(64, True), (65, False), (3 * 10**9, False)])
def test_large_input_is_not_printed(values: int, tried: bool) -> None:
    line = try_line(described(TensorSpec("image", "FP32", (-1, values))), URL)
    assert line.endswith("/v2/models/m") is not tried
    assert len(line) < 1000


def test_ready_message_names_the_models_and_one_line_to_try() -> None:
    lines = ready_message(URL, [described(), described(name="n")], {}).splitlines()
    assert lines[0] == f"ready: {URL} (m, n)"
    assert lines[1] == "try:"
    assert lines[2].startswith(f"  curl -s {URL}/v2/models/m/infer")
    assert len(lines) == 3


def test_ready_message_names_optional_models_that_are_not() -> None:
    lines = ready_message(URL, [described()], {"z": "", "extra": "no file"}).splitlines()
    assert lines[1:3] == [
        "extra is optional and cannot start: no file",
        "z is optional and is not ready yet",
    ]
