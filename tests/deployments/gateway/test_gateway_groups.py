"""Two groups behind one queue, over HTTP: whichever is done first answers, or the one that runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from held_calls import INFER, body_of
from in_process import Stand, ask, standing

MODEL: dict[str, Any] = {
    "runtime": "synthetic",
    "lengths": {"max": 64},
    "profile_s": 0,
    "slo": {"latency_ms": 2000},
    "replicas": {"groups": [{"name": "fast"}, {"name": "slow", "slots": 1}]},
}
SECONDS = {"fast": 0.01, "slow": 0.2}


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    """Costs as of devices of which one takes twenty times as long."""
    async with standing({"device": MODEL}, tmp_path) as stand:
        known = stand.models._served["device"].description
        groups = tuple(
            replace(
                group,
                digest="other",
                profile=tuple((rows, 64, SECONDS[group.name] * rows) for rows in (1, 32)),
            )
            for group in known.groups
        )
        stand.swap("device", digest="other", groups=groups)
        yield stand


def served(stand: Stand) -> Counter[str]:
    return Counter(replica_id for replica_id, _ in stand.channels["device"].calls)


async def test_the_group_that_is_done_first_answers(stand: Stand) -> None:
    for value in range(5):
        answer = await ask(stand.app, "POST", INFER, body=body_of([value]))
        assert answer.status == 200
    assert served(stand) == {"device-fast-0": 5}


async def test_a_group_alone_answers_as_well(stand: Stand) -> None:
    stand.run_replicas("device", ["device-slow-0"])
    answer = await ask(stand.app, "POST", INFER, body=body_of([3]))
    assert answer.status == 200
    assert served(stand) == {"device-slow-0": 1}


async def test_each_group_has_its_own_slots_and_shares_the_queue(stand: Stand) -> None:
    queue = stand.models._served["device"].queue
    seen = {each.replica_id: each for each in queue.snapshot().replicas}
    assert {name: (each.group, each.capacity) for name, each in seen.items()} == {
        "device-fast-0": ("fast", 2.0), "device-slow-0": ("slow", 1.0),
    }  # fmt: skip
    stand.channels["device"].hold()
    waiting = [
        asyncio.create_task(ask(stand.app, "POST", INFER, body=body_of([n]))) for n in range(90)
    ]
    await stand.channels["device"].sent(2)
    stand.channels["device"].let_go()
    answers = await asyncio.gather(*waiting)
    assert {answer.status for answer in answers} == {200}


async def test_another_group_comes_up_while_requests_run(stand: Stand) -> None:
    served_model = stand.models._served["device"]
    both = served_model.description
    stand.run_replicas("device", ["device-slow-0"])
    served_model.replace(replace(both, groups=both.groups[1:]), None)
    stand.channels["device"].hold()
    first = asyncio.create_task(ask(stand.app, "POST", INFER, body=body_of([1])))
    await stand.channels["device"].sent(1)
    served_model.replace(both, None)
    stand.run_replicas("device", ["device-fast-0", "device-slow-0"])
    second = asyncio.create_task(ask(stand.app, "POST", INFER, body=body_of([2])))
    await stand.channels["device"].sent(2)
    stand.channels["device"].let_go()
    assert [(await each).status for each in (first, second)] == [200, 200]
    assert served(stand) == {"device-slow-0": 1, "device-fast-0": 1}


async def test_replicas_that_a_group_had_before_get_nothing(stand: Stand) -> None:
    served_model = stand.models._served["device"]
    fast, slow = served_model.description.groups
    served_model.replace(
        replace(served_model.description, groups=(replace(fast, digest="newer"), slow)), None
    )
    stand.run_replicas("device", ["device-slow-0"])
    stand.run_replicas("device", ["device-fast-0", "device-slow-0"])
    assert served_model.queue.calls.reached == ["device-slow-0"]
