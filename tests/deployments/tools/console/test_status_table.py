"""The table and the JSON of `status` say what the snapshot says."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from deployments.control.registry.server_status import ModelStatus, StatusSnapshot
from deployments.tools.console.status_table import _seconds, show

MODEL: ModelStatus = {
    "name": "[red]m",
    "version": "abc",
    "runtime": "openvino",
    "state": "ready",
    "reason": "",
    "optional": False,
    "replicas_ready": 1,
    "replicas": 2,
    "waiting_rows": 7,
    "late_rows": 3,
    "oldest_wait_s": 0.012,
    "leases": 4,
    "backlog_s": 2.5,
    "drift": 0,
    "rows_by_bucket": {"32": 5, "512": 2},
    "rows_by_tenant": {"acme": 2, "batch": 5},
    "tokens_per_s": 0.0,
    "engines": {},
    "device_memory_bytes": {},
    "ejected": [],
    "ended": {},
    "profile": "",
}
SNAPSHOT: StatusSnapshot = {
    "url": "http://127.0.0.1:8000",
    "pid": 42,
    "uptime_s": 7500.0,
    "gateways": 1,
    "models": [MODEL],
    "frozen": False,
    "problem": None,
}


def shown(snapshot: StatusSnapshot) -> str:
    out = io.StringIO()
    show(snapshot, Console(file=out, width=160))
    return out.getvalue()


def test_table_holds_every_figure_of_a_model() -> None:
    title, headings, row, *_ = (line.split() for line in shown(SNAPSHOT).strip().splitlines())
    assert " ".join(title) == "http://127.0.0.1:8000 pid 42 up 2 h 5 min 1 gateway"
    assert headings[0] == "MODEL"
    assert row == [
        "[red]m",
        "abc",
        "openvino",
        "ready",
        "1/2",
        "7",
        "3",
        "12",
        "ms",
        "4",
        "2.5",
        "s",
        "0",
    ]


def test_a_gateway_that_says_nothing_any_more_is_marked() -> None:
    said = shown({**SNAPSHOT, "gateways": 2, "silent": {"g1": 8.2}}).splitlines()[0]
    assert said.endswith("2 gateways, 1 of them last seen 8.2 s ago")


def test_what_waits_is_told_by_length_below_the_table() -> None:
    assert "[red]m waiting by length: 5 up to 32, 2 up to 512\n" in shown(SNAPSHOT)
    empty: ModelStatus = {**MODEL, "rows_by_bucket": {}, "rows_by_tenant": {}}
    assert "waiting by" not in shown({**SNAPSHOT, "models": [empty]})


def test_the_tenants_with_most_rows_are_told_first_and_the_many_added_up() -> None:
    assert "[red]m waiting by tenant: batch 5, acme 2\n" in shown(SNAPSHOT)
    many: ModelStatus = {**MODEL, "rows_by_tenant": {f"t{n:02}": 20 - n for n in range(12)}}
    text = " ".join(shown({**SNAPSHOT, "models": [many]}).split())
    assert text.endswith("t08 12, t09 11, others 19")


def test_replicas_that_are_left_out_are_named() -> None:
    assert "slow" not in shown(SNAPSHOT)
    slow: ModelStatus = {**MODEL, "ejected": ["r#1", "r#2"]}
    assert "[red]m slow replicas left out: r#1, r#2\n" in shown({**SNAPSHOT, "models": [slow]})


def test_replicas_that_have_ended_are_named_with_the_reason() -> None:
    assert "lost" not in shown(SNAPSHOT)
    less: ModelStatus = {**MODEL, "ended": {"r#1": (12.0, "its engine died, and 3 requests")}}
    line = "[red]m lost r#1 12.0 s ago: its engine died, and 3 requests\n"
    assert line in shown({**SNAPSHOT, "models": [less]})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.999, "999 ms"),
        (1, "1.0 s"),
        (119.9, "119.9 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h 0 min"),
    ],
)
def test_times_are_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert _seconds(seconds) == text


def test_a_model_that_generates_says_how_much_and_how_full_it_is() -> None:
    engines = {"r0": [3, 1, 0.5], "r1": [2, 0, 0.25]}
    model: ModelStatus = {**MODEL, "name": "chat", "tokens_per_s": 812.4, "engines": engines}
    page = shown({**SNAPSHOT, "models": [model]})
    said = "chat generates: 812 tokens/s, 38% of the cache used, 5 running, 1 waiting in engines"
    assert said in page


def test_memory_of_gpus_is_shown_the_fullest_first() -> None:
    gib = 1 << 30
    held: dict[str, dict[str, int | None]] = {
        "r0": {"own": gib, "used": 3 * gib, "total": 80 * gib},
        "r1": {"own": None, "used": 9 * gib, "total": 10 * gib},
        **{f"r{at}": {"own": None, "used": 0, "total": 99 * gib} for at in range(2, 6)},
    }
    page = shown({**SNAPSHOT, "models": [{**MODEL, "device_memory_bytes": held}]})
    said = "on GPUs: r1 9,216 of 10,240 MiB used, r0 has 1,024, 3,072 of 81,920 MiB used, r2"
    assert said in " ".join(page.split())
    assert "2 more" in page
    assert "on GPUs" not in shown(SNAPSHOT)


def test_a_model_that_readiness_does_without_says_so_and_why_it_cannot_start() -> None:
    late = MODEL | {"state": "failed", "optional": True, "reason": "no file m.onnx"}
    page = shown(SNAPSHOT | {"models": [late]})
    assert "[red]m cannot start: no file m.onnx\n[red]m is optional: nothing waits" in page
    assert "optional" not in shown(SNAPSHOT)
    starting = MODEL | {"state": "starting", "reason": "compiling 40%"}
    assert "[red]m is starting: compiling 40%" in shown(SNAPSHOT | {"models": [starting]})
    half = MODEL | {"reason": "out of memory"}
    page = shown(SNAPSHOT | {"models": [half]})
    assert "[red]m has a replica that cannot start: out of memory" in page


@pytest.mark.parametrize("width", [80, 100, 160])
def test_every_model_has_one_line_that_fits(width: int) -> None:
    models: list[ModelStatus] = [
        MODEL
        | {
            "name": name,
            "version": "31a8498a358d",
            "runtime": "onnxruntime",
            "state": state,
            "optional": True,
            "oldest_wait_s": 119.9,
            "backlog_s": 119.9,
            "waiting_rows": 9999,
            "leases": 1024,
            "rows_by_bucket": {},
            "rows_by_tenant": {},
        }
        for name, state in (("e" * 63, "declared"), ("device", "ready"))
    ]
    out = io.StringIO()
    show(SNAPSHOT | {"models": models}, Console(file=out, width=width))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines[2:4]] == [lines[2].split()[0], "device"]
    assert "31a8498a358d" in lines[3]
    assert "ready" in lines[3]
    assert ("onnxruntime" in lines[3]) is (width >= 100)
