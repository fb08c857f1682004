"""Which answers count as having kept their model's promise."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from held_calls import body_of
from in_process import Stand, ask, standing

QUICK = {"runtime": "synthetic", "options": {"base_ms": 0}, "slo": {"latency_ms": 5000}}
NEVER = {**QUICK, "slo": {"latency_ms": 0.001, "timeout_ms": 5000}}


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    models = {"quick": QUICK, "never": NEVER}
    async with standing(models, tmp_path, tenants={"default": {}}) as stand:
        yield stand


async def kept(stand: Stand) -> dict[str, float]:
    """By model."""
    page = (await ask(stand.app, "GET", "/metrics")).body.decode()
    found = re.findall(r'headrace_slo_kept_total\{.*model="(\w+)".*\} (\S+)', page)
    return {model: float(count) for model, count in found}


async def post(stand: Stand, model: str, **headers: str) -> int:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    path = f"/v2/models/{model}/infer"
    return (await ask(stand.app, "POST", path, pairs, body_of([1]))).status


async def test_an_answer_within_the_models_latency_keeps_it(stand: Stand) -> None:
    assert await post(stand, "quick") == 200
    assert await kept(stand) == {"quick": 1}


async def test_a_late_answer_does_not_and_is_counted_as_none(stand: Stand) -> None:
    assert await post(stand, "never") == 200
    assert await kept(stand) == {"never": 0}


async def test_the_time_that_a_caller_gives_is_the_promise(stand: Stand) -> None:
    assert await post(stand, "never", x_timeout_ms="5000") == 200
    assert await kept(stand) == {"never": 1}


async def test_what_is_refused_keeps_nothing(stand: Stand) -> None:
    assert (await ask(stand.app, "POST", "/v2/models/quick/infer", (), b"{")).status == 400
    assert await kept(stand) == {"quick": 0}
