"""The log of decisions says why a request waited, where it went and how it ended, if it is on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from followed_registry import Following
from held_calls import SYNTHETIC, fill, send
from in_process import standing

from deployments.contract.description import ModelDescription
from deployments.gateway import decisions
from deployments.gateway.decisions import DecisionLog

ON = {"log": {"decisions": True}}
ID = (b"x-request-id", b"the-one")
Line = tuple[str, str, str]  # event, decision, reason


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def of(self, request_id: str) -> list[Line]:
        return [
            (each.event, each.decision, each.reason)  # type: ignore[attr-defined]
            for each in self.records
            if each.request_id == request_id  # type: ignore[attr-defined]
        ]


@pytest.fixture
def lines() -> Iterator[Lines]:
    lines = Lines()
    decisions.logger.addHandler(lines)
    yield lines
    decisions.logger.removeHandler(lines)


def _place(line: Line) -> int:
    """A lease's end and its request's are told in either order."""
    return ["arrive", "dispatch", "end", "close"].index(line[0])


def events(lines: list[Line]) -> list[str]:
    return [event for event, _, _ in lines]


async def test_a_request_that_is_answered_says_where_it_went(lines: Lines, tmp_path: Path) -> None:
    async with standing({"device": SYNTHETIC}, tmp_path, gateway=ON) as stand:
        assert (await send(stand, 1, headers=[ID])).status == 200
        await stand.settled()
    (_, _, load), (_, sent, why), (_, ended, times), (_, closed, _) = sorted(
        lines.of("the-one"), key=_place
    )
    assert load.endswith("0 rows wait, 0 ms of work on one replica; 1 of 1 replicas have room")
    assert sent == "sent to device-0"
    assert "batch of 1 rows from 1 requests" in why
    assert (ended, closed) == ("200 ok", "answered by device-0")
    assert times.endswith("ms of service")


async def test_one_that_waits_says_what_for(lines: Lines, tmp_path: Path) -> None:
    async with standing({"device": SYNTHETIC}, tmp_path, gateway=ON, replicas=2) as stand:
        before = await fill(stand)
        late = send(stand, 1, headers=[ID])
        await stand.waiting("device", 1)
        stand.channels["device"].let_go()
        await asyncio.gather(late, *before)
        await stand.settled()
    (_, _, why), *_ = lines.of("the-one")
    assert "all 2 replicas are full or unhealthy (0 unhealthy)" in why


async def test_a_lost_replica_and_the_second_run_are_said(lines: Lines, tmp_path: Path) -> None:
    async with standing({"device": SYNTHETIC}, tmp_path, gateway=ON, replicas=2) as stand:
        stand.channels["device"].script = ["gone"]
        assert (await send(stand, 1, headers=[ID])).status == 200
        await stand.settled()
        first, second = (replica for replica, _ in stand.channels["device"].calls)
    found = lines.of("the-one")
    assert ("close", f"lost by {first}") in [each[:2] for each in found]
    (_, again, why) = [each for each in found if each[0] == "dispatch"][1]
    assert again == f"sent to {second}"
    assert "alone, since such an input was on a replica that was lost" in why


async def test_a_refusal_says_its_reason(lines: Lines, tmp_path: Path) -> None:
    async with standing({"device": SYNTHETIC}, tmp_path, gateway=ON) as stand:
        channel = stand.channels["device"]
        channel.script = ["gone"]
        answer = await send(stand, 1, headers=[ID, (b"x-timeout-ms", b"0.001")])
        await stand.settled()
    assert answer.status == 504
    assert events(lines.of("the-one"))[-1] == "end"
    assert lines.of("the-one")[-1][1] == "504 expired"


async def test_nothing_is_written_unless_settings_ask(lines: Lines, tmp_path: Path) -> None:
    async with standing({"device": SYNTHETIC}, tmp_path) as stand:
        await send(stand, 1, headers=[ID])
        await stand.settled()
    assert lines.records == []


async def test_models_that_come_later_are_logged_too(
    following: Following, description: Callable[..., ModelDescription]
) -> None:
    following.catalogue.decisions = DecisionLog("g")
    following.run(description())
    await following.registry.tell(description())
    assert following.catalogue.find("device").queue.decisions is not None


def test_lines_are_bounded_and_those_left_out_are_counted(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "MAX_LINES_PER_S", 2)
    now = [0.0]
    log = DecisionLog("g", lambda: now[0])
    for each in "abcd":
        log.note(each, "m", "arrive", "queued")
    now[0] = 1.0
    log.note("e", "m", "arrive", "queued")
    said = [(each.request_id, each.suppressed) for each in lines.records]  # type: ignore[attr-defined]
    assert said == [("a", None), ("b", None), ("e", 2)]
