"""Which version's replicas get the work while Serve changes them few at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from in_process import Stand, standing

from deployments.gateway.models.served_model import ServedModel
from deployments.process.replica_directory import RunningReplica
from deployments.settings.groups import POOL_GROUP

NAMES = [f"device-{index}" for index in range(4)]


class Changing:
    """A model of four replicas, `new` of which are of another version."""

    def __init__(self, stand: Stand) -> None:
        self._directory = stand.books["device"]
        self.model: ServedModel = stand.models.served["device"]
        self.old = self.model.description

    def announce(self, **changes: str) -> None:
        named = {"version": "2", "digest": "newer"} | changes
        self.model.replace(replace(self.old, **named), None)

    def run(self, old: list[str], new: list[str], group: str = "") -> None:
        digests = dict.fromkeys(old, self.old.digest) | dict.fromkeys(new, "newer")
        self._directory.update(
            RunningReplica(name, (("digest", digest), ("group", group)))
            for name, digest in digests.items()
        )

    @property
    def at_work(self) -> list[str]:
        return sorted(self.model.queue.calls.reached)

    @property
    def version(self) -> str:
        return self.model.description.version


@pytest.fixture
async def changing(tmp_path: Path) -> AsyncIterator[Changing]:
    model = {"runtime": "synthetic", "profile_s": 0}
    async with standing({"device": model}, tmp_path, replicas=len(NAMES)) as stand:
        yield Changing(stand)


async def test_the_old_ones_work_until_as_many_new_ones_run(changing: Changing) -> None:
    changing.announce()
    assert (changing.at_work, changing.version) == (NAMES, changing.old.version)
    changing.run(old=NAMES[1:], new=NAMES[:1])
    assert (changing.at_work, changing.version) == (NAMES[1:], changing.old.version)
    changing.run(old=NAMES[2:], new=NAMES[:2])
    assert (changing.at_work, changing.version) == (NAMES[:2], "2")
    changing.run(old=[], new=NAMES)
    assert changing.at_work == NAMES


async def test_it_is_said_when_a_version_goes_live_later_than_it_was_announced(
    changing: Changing,
) -> None:
    said: list[str] = []
    changing.model.on_live = lambda: said.append(changing.version)
    changing.announce()
    changing.run(old=NAMES[:2], new=NAMES[2:3])
    assert said == []
    assert changing.model.announced.version == "2"
    changing.run(old=NAMES[:1], new=NAMES[2:3])
    assert said == ["2"]
    assert changing.model.announced is changing.model.description


async def test_a_version_whose_predecessor_is_gone_is_live_at_once(changing: Changing) -> None:
    changing.run(old=[], new=[])
    changing.announce()
    assert changing.version == "2"


async def test_a_later_announcement_takes_the_place_of_one_that_waits(changing: Changing) -> None:
    changing.announce()
    changing.announce(version="3", digest="newest")
    changing.run(old=[], new=NAMES)
    assert changing.version == "3"
    assert changing.at_work == []


async def test_going_back_while_it_waits_changes_nothing(changing: Changing) -> None:
    changing.announce()
    changing.model.replace(changing.old, None)
    changing.run(old=NAMES[1:], new=NAMES[:1])
    assert changing.version == changing.old.version
    assert changing.model.announced is changing.old


async def test_the_pools_replicas_count_for_neither(changing: Changing) -> None:
    changing.announce()
    changing.run(old=NAMES[:1], new=[])
    changing.run(old=NAMES[:1], new=NAMES[1:], group=POOL_GROUP)
    assert changing.version == "2"  # none of the old version's own runs
