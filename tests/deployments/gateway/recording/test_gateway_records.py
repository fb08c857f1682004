"""A gateway keeps what callers send where a model asks for it, of the tenants that may be kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from generating import COMPLETIONS, SHAPE, Client, add
from held_calls import INFER, body_of
from in_process import ask, standing

from deployments.contract.channel.stream_messages import StreamEnd
from deployments.contract.description import ModelDescription, Recording
from deployments.gateway.recording.recorder import Recorder
from runtimes import ragged_file

MODEL: dict[str, Any] = {
    "runtime": "synthetic",
    "options": {"base_ms": 0},
    "slo": {"latency_ms": 2000},
    "cache": {"max_bytes": 1_000_000},
}
TENANTS = {"a": {}, "b": {"record": False}}


async def test_requests_are_kept_also_those_the_cache_answers_and_none_of_who_opted_out(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "recorded"
    model = {**MODEL, "record": {"folder": str(folder)}}
    async with standing({"device": model}, tmp_path, tenants=TENANTS) as stand:
        before = time.time()
        for tenant in (b"a", b"b", b"a"):
            answer = await ask(stand.app, "POST", INFER, [(b"x-tenant", tenant)], body_of([1, 2]))
            assert answer.status == 200, answer.body
        served = stand.models.served["device"]
        assert served.recorder is not None
        served.recorder.close()
        after = time.time()
    (part,) = (folder / "parts").glob("g0-*")
    header, *lines = (part / "trace.csv").read_text().splitlines()
    assert header == "time,length,tenant"
    assert [line.split(",")[1:] for line in lines] == [["1", "a"], ["1", "a"]]
    assert before <= float(lines[0].split(",")[0]) <= float(lines[1].split(",")[0]) <= after
    rows = ragged_file.read(part / "samples.npz")["ids"]
    assert sorted(row.tolist() for row in rows) == [[1], [1], [2], [2]]


async def test_a_model_that_does_not_ask_for_it_keeps_nothing(tmp_path: Path) -> None:
    async with standing({"device": MODEL}, tmp_path, tenants=TENANTS) as stand:
        assert stand.models.served["device"].recorder is None


async def test_of_requests_to_generate_lengths_are_kept_however_they_end(
    tmp_path: Path, description: Callable[..., ModelDescription]
) -> None:
    one = replace(SHAPE, max_sequences=1)
    async with standing({"device": MODEL}, tmp_path, tenants=TENANTS) as stand:
        engines = add(stand, description, shape=one)
        served = stand.models.served["chat"]
        recording = Recording(str(tmp_path / "recorded"), (16, 100), 1, 1, 100, generates=True)
        served.recorder = Recorder(recording, "g0")
        asked = {"model": "chat", "prompt": "a" * 32}
        first = Client(stand, COMPLETIONS, asked, [(b"x-tenant", b"a")])
        lease = (await engines.until_begun(1)).lease_id
        leaves = Client(stand, COMPLETIONS, asked, [(b"x-tenant", b"a")])
        await stand.waiting("chat", 1)
        other = Client(stand, COMPLETIONS, asked, [(b"x-tenant", b"b")])
        leaves.leave.set()
        await leaves.end()
        engines.say(lease, b"{}", tokens=(9, 0, 5), end=StreamEnd.DONE)
        await first.end()
        engines.say(
            (await engines.until_begun(2)).lease_id, b"{}", tokens=(9, 0, 5), end=StreamEnd.DONE
        )
        await other.end()
        served.recorder.close()
    (part,) = (tmp_path / "recorded" / "parts").iterdir()
    assert [file.name for file in part.iterdir()] == ["trace.csv"]
    header, *lines = (part / "trace.csv").read_text().splitlines()
    assert header == "time,length,output,tenant"
    assert sorted(line.split(",", 1)[1] for line in lines) == ["8,0,a", "9,5,a"]
