"""A model `m` of the in-process stand and its canary: both give each row's value back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fake_runtimes import Moody
from in_process import Answer, Stand, ask, standing

from deployments.contract.rollout.observations import Observations

LIVE, CANARY = "m", "m@canary"
INFER = "/v2/models/m/infer"
MODEL: dict[str, Any] = {
    "runtime": "synthetic",
    "options": {"base_ms": 0},
    "slo": {"latency_ms": 2000},
    "crashes": {"hold_s": 0},
    "version": "1",
}


def content(_: int) -> None:
    """A row that nothing is wrong with."""


@asynccontextmanager
async def rolling_out(
    folder: Path,
    *,
    live: Mapping[str, Any] | None = None,
    canary: Mapping[str, Any] | None = None,
    mood: Callable[[int], Exception | None] = content,
    runtimes: Mapping[str, Any] | None = None,
    **more: Any,
) -> AsyncIterator[Stand]:
    """All of the requests go to the canary. `mood`: the canary's. `runtimes`: None is the synthetic
    device."""
    models = {LIVE: {**MODEL, **(live or {})}, CANARY: {**MODEL, "version": "2", **(canary or {})}}
    given = {LIVE: Moody(content), CANARY: Moody(mood), **(runtimes or {})}
    fakes = {name: runtime for name, runtime in given.items() if runtime is not None}
    async with standing(models, folder, runtimes=fakes, **more) as stand:
        stand.route(LIVE)
        yield stand


def body_of(*values: int, name: str = "x") -> bytes:
    tensor = {"name": name, "datatype": "INT64", "shape": [len(values), 1], "data": values}
    return json.dumps({"inputs": [tensor]}).encode()


async def post(
    stand: Stand, *values: int, path: str = INFER, headers: Any = (), **more: Any
) -> Answer:
    return await ask(stand.app, "POST", path, headers, body_of(*(values or (7,))), **more)


def send(stand: Stand, *values: int, **more: Any) -> asyncio.Task[Answer]:
    return asyncio.create_task(post(stand, *values, **more))


def version_of(answer: Answer) -> str:
    """Of an answer, that is whole."""
    assert answer.status == 200, answer.body
    assert b"canary" not in answer.body + b"".join(b"".join(pair) for pair in answer.headers)
    body = json.loads(answer.body)
    assert body["model_name"] == LIVE
    return str(body["model_version"])


def seen(stand: Stand) -> Observations:
    (found,) = stand.app.rollouts.report()
    return found


def counts(stand: Stand) -> tuple[tuple[int, int], tuple[int, int]]:
    """(answered, failed) of the live version and of the canary."""
    found = seen(stand)
    live, canary = found.live, found.canary
    return (live.answered, live.failed), (canary.answered, canary.failed)
