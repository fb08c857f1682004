"""The places for adapters that an engine has, and who gets them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from runtimes.adapters import AdapterSlots, ResidentAdapters, Want
from runtimes.types import Adapter


def _run(slots: AdapterSlots, name: str) -> None:
    """One request for it, from beginning to end."""
    if slots.want(name).want is Want.LOAD:
        slots.loaded(name, 0.1)
        assert slots.want(name, first=False).want is Want.RUN
    slots.done(name)


def test_an_adapter_is_loaded_once_for_all_who_wait_for_it() -> None:
    slots = AdapterSlots(2)
    assert slots.want("a").want is Want.LOAD
    assert slots.want("a").want is Want.WAIT
    assert slots.held == ()
    slots.loaded("a", 0.5)
    assert [slots.want("a", first=False).want for _ in range(2)] == [Want.RUN] * 2
    assert (slots.loads, slots.load_s, slots.held) == (1, 0.5, ("a",))


def test_the_least_used_makes_room() -> None:
    slots = AdapterSlots(2)
    for name in ("a", "a", "b"):
        _run(slots, name)
    answer = slots.want("c")
    assert (answer.want, answer.victim) == (Want.LOAD, "b")
    assert slots.held == ("a",)


def test_what_was_popular_long_ago_makes_room() -> None:
    slots = AdapterSlots(2)
    for name in ("a",) * 3 + ("b",) * 2000 + ("c",) * 3:
        _run(slots, name)
    assert slots.held == ("b", "c")


def test_an_adapter_in_use_stays_and_takes_no_more_while_another_waits() -> None:
    slots = AdapterSlots(1)
    _run(slots, "a")
    assert slots.want("a").want is Want.RUN
    assert slots.want("b").want is Want.WAIT
    assert slots.want("a").want is Want.WAIT, "b would wait for ever"
    slots.done("a")
    answer = slots.want("b", first=False)
    assert (answer.want, answer.victim) == (Want.LOAD, "a")
    assert slots.want("a", first=False).want is Want.WAIT


def test_who_waited_and_left_blocks_nobody() -> None:
    slots = AdapterSlots(1)
    _run(slots, "a")
    assert slots.want("a").want is Want.RUN
    assert slots.want("b").want is Want.WAIT
    slots.done("a")
    assert slots.want("a").want is Want.RUN


def test_a_load_that_failed_gives_its_place_back() -> None:
    slots = AdapterSlots(1)
    assert slots.want("a").want is Want.LOAD
    assert slots.want("b").want is Want.WAIT
    slots.failed("a")
    assert slots.want("b", first=False).want is Want.LOAD
    assert slots.loads == 0


def test_only_an_adapter_that_nobody_uses_is_dropped() -> None:
    slots = AdapterSlots(2)
    _run(slots, "a")
    assert slots.want("a").want is Want.RUN
    assert not slots.drop("a")
    slots.done("a")
    assert slots.drop("a")
    assert not slots.drop("a")
    assert slots.held == ()


async def test_files_that_take_long_to_come_keep_no_thread_from_others() -> None:
    places = 64  # more than a loop has threads
    come, done = threading.Event(), []

    def files() -> tuple[Path, str]:
        assert come.wait(60.0)
        return Path("here"), "0"

    async def load(name: str, folder: Path, digest: str) -> None:
        done.append(name)

    async def unload(name: str) -> None:
        raise AssertionError("there is a place for each")

    table = {f"a{n}": Adapter(f"a{n}", files) for n in range(places)}
    held = ResidentAdapters(table, places, load, unload)
    asked = [asyncio.create_task(held.use(name)) for name in table]
    for _ in range(3):  # they ask, and their loads begin
        await asyncio.sleep(0)
    try:
        await asyncio.wait_for(asyncio.to_thread(int), 20.0)
        assert not done
    finally:
        come.set()
    await asyncio.gather(*asked)
    assert sorted(done) == sorted(table)
    await held.close()
