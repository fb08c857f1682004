"""Does an alarm ring once, when it was set to last, on each kind of loop?"""

import asyncio
import sys

import pytest

from loadtests.client.player import Alarm, LinuxAlarm, alarm

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="timerfd is Linux's")
KINDS = [Alarm, pytest.param(LinuxAlarm, marks=ON_LINUX)]


@pytest.mark.parametrize("kind", KINDS)
async def test_rings_once_not_before_its_time_and_moves_when_set_anew(kind):
    loop = asyncio.get_running_loop()
    rung: list[float] = []
    done = asyncio.Event()

    def ring() -> None:
        rung.append(loop.time())
        done.set()

    some = kind(loop, ring)
    some.ring_in(60.0)
    start = loop.time()
    some.ring_in(0.01)
    await asyncio.wait_for(done.wait(), 10.0)
    some.close()
    assert len(rung) == 1
    assert rung[0] - start >= 0.009


@pytest.mark.parametrize("kind", KINDS)
async def test_closed_alarm_does_not_ring(kind):
    loop = asyncio.get_running_loop()
    rung: list[int] = []
    some = kind(loop, lambda: rung.append(1))
    some.ring_in(0.001)
    some.close()
    await asyncio.sleep(0.01)
    assert not rung


@ON_LINUX
async def test_linux_has_the_exact_one():
    found = alarm(asyncio.get_running_loop(), lambda: None)
    assert isinstance(found, LinuxAlarm)
    found.close()
