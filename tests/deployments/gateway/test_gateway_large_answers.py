"""Large answers through the whole gateway: encoded off the loop, held, sent as they are taken."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from both_loops import event_loop_policy as event_loop_policy
from in_process import Answer, Stand, ask
from slow_reader import head_of
from uvicorn_server import serving
from wide_models import Wide, wide_stand

from deployments.contract.errors import Overloaded
from deployments.gateway.http import strict_protocol
from deployments.gateway.http.large_answers import WHOLE_BYTES, LargeAnswer

WIDTH, ROWS = 4096, 200  # 3.3 MB, and about 9 MB as JSON
HELD = WIDTH * ROWS * 4
SENT = 64  # rows of the replica's two slots, a batch each
PATH = "/v2/models/m/infer"


def infer(rows: int = ROWS, **more: Any) -> bytes:
    tensor = {"name": "input_ids", "datatype": "INT64", "shape": [rows, 1], "data": [0] * rows}
    return json.dumps({"inputs": [tensor], **more}).encode()


async def post(stand: Stand, body: bytes, **more: Any) -> Answer:
    return await ask(stand.app, "POST", PATH, body=body, pieces=True, **more)


def held_bytes(stand: Stand) -> int:
    return stand.app._pipeline._services.limits.room.held_bytes


@pytest.fixture
def takers(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads that made pieces."""
    threads: list[threading.Thread] = []
    take = LargeAnswer.take

    def noting(self: LargeAnswer, *args: Any) -> tuple[bytes, bool]:
        threads.append(threading.current_thread())
        return take(self, *args)

    monkeypatch.setattr(LargeAnswer, "take", noting)
    return threads


@pytest.fixture
def wide() -> Wide:
    return Wide(WIDTH)


async def test_a_large_answer_is_whole_and_none_of_it_is_encoded_on_the_loop(
    tmp_path: Path, wide: Wide, takers: list[threading.Thread]
) -> None:
    async with wide_stand(wide, tmp_path) as stand:
        answer = await post(stand, infer())
    assert answer.status == 200
    assert answer.header(b"content-length") is None
    (output,) = json.loads(answer.body)["outputs"]
    assert output["shape"] == [ROWS, WIDTH]
    assert np.array_equal(
        np.array(output["data"], np.float32).reshape(ROWS, WIDTH), [wide.numbers] * ROWS
    )
    assert len(takers) > 10
    assert threading.main_thread() not in takers


async def test_an_answer_of_some_size_has_its_length(
    tmp_path: Path, wide: Wide, takers: list[threading.Thread]
) -> None:
    async with wide_stand(wide, tmp_path) as stand:
        answer = await post(stand, infer(40))
        size = answer.header(b"content-length")
    assert size is not None
    assert 300_000 < int(size) == len(answer.body) < WHOLE_BYTES
    assert takers


async def test_a_small_answer_is_encoded_at_once(
    tmp_path: Path, wide: Wide, takers: list[threading.Thread]
) -> None:
    async with wide_stand(wide, tmp_path) as stand:
        assert (await post(stand, infer(2))).status == 200
    assert not takers


async def test_its_memory_is_held_before_it_is_queued_and_given_back(
    tmp_path: Path, wide: Wide
) -> None:
    async with wide_stand(wide, tmp_path) as stand:
        stand.channels["m"].hold()
        asking = asyncio.create_task(post(stand, infer()))
        await stand.waiting("m", ROWS - SENT)
        assert (wide.runs, held_bytes(stand)) == (0, HELD + WHOLE_BYTES)
        stand.channels["m"].let_go()
        assert (await asking).status == 200
        assert held_bytes(stand) == 0


async def test_where_it_has_no_place_now_the_caller_may_come_again_and_nothing_runs(
    tmp_path: Path, wide: Wide
) -> None:
    limits = {"limits": {"max_held_bytes": HELD + WHOLE_BYTES}}
    async with wide_stand(wide, tmp_path, gateway=limits) as stand:
        stand.channels["m"].hold()
        asking = asyncio.create_task(post(stand, infer()))
        await stand.waiting("m", ROWS - SENT)
        refused = await post(stand, infer())
        assert (refused.status, refused.header(b"retry-after")) == (503, b"1")
        assert b"gateway.limits.max_held_bytes" in refused.body
        assert held_bytes(stand) == HELD + WHOLE_BYTES
        stand.channels["m"].let_go()
        assert (await asking).status == 200
        assert (await post(stand, infer())).status == 200


async def test_a_full_pool_ends_no_answer_that_has_begun(
    tmp_path: Path, wide: Wide, takers: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wide_stand(wide, tmp_path) as stand:
        run, turns = stand.pool.run, 0

        async def full(*args: Any) -> Any:
            nonlocal turns
            turns += 1
            if turns > 20:
                raise Overloaded("full", retry_after_s=1.0, reason="preprocess_full")
            return await run(*args)

        monkeypatch.setattr(stand.pool, "run", full)
        answer = await post(stand, infer())
    assert len(json.loads(answer.body)["outputs"][0]["data"]) == WIDTH * ROWS
    assert threading.main_thread() in takers


async def test_who_leaves_has_no_more_pieces_made(
    tmp_path: Path, wide: Wide, takers: list[threading.Thread]
) -> None:
    leave, begun = asyncio.Event(), asyncio.Event()

    async def send(message: dict[str, Any]) -> None:
        begun.set()
        await asyncio.sleep(0.001)  # the client takes its time

    bodies = [infer(2048)]

    async def receive() -> dict[str, Any]:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        await leave.wait()
        return {"type": "http.disconnect"}

    scope = {
        "type": "http", "method": "POST", "path": PATH, "raw_path": PATH.encode(),
        "query_string": b"", "headers": [], "client": ("127.0.0.1", 1), "extensions": {},
    }  # fmt: skip
    async with wide_stand(wide, tmp_path) as stand:
        asking = asyncio.create_task(stand.app(scope, receive, send))
        await begun.wait()
        leave.set()
        await asking
        assert held_bytes(stand) == 0
    assert len(takers) < 200  # of about 350


async def test_no_more_is_made_than_the_client_takes(
    tmp_path: Path, wide: Wide, takers: list[threading.Thread]
) -> None:
    async with wide_stand(wide, tmp_path) as stand:
        config = uvicorn.Config(
            stand.app, port=0, log_config=None, http=strict_protocol.StrictProtocol
        )
        async with serving(config) as port:
            head, reader, writer = await head_of(port, "m", "default", infer(2048))
            assert b"transfer-encoding: chunked" in head
            made = 0
            while made < len(takers):  # until it stands still
                made = len(takers)
                await asyncio.sleep(0.1)
            assert made < 20
            assert held_bytes(stand) == 2048 * WIDTH * 4 + WHOLE_BYTES
            await reader.read(1 << 20)
            writer.close()
            while held_bytes(stand):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)
