"""How long queues of several gateways are where all are asked for more than there is."""

from __future__ import annotations

import random

import pytest

from routers.api.requests import Reason
from routers.api.settings import AdmissionParameters, DispatcherSettings, Mode
from routers.simulation.simulator import Arrival, SimDevice, World, run
from routers.simulation.traffic import SimRecorder

TIMEOUT_S = 2.0


def service_s(rows: int, width: int) -> float:
    return 0.01 + 0.0015 * rows  # 552 rows a second in batches of 32


@pytest.mark.slow
@pytest.mark.parametrize("gateways", [1, 2, 3])
def test_what_waits_at_all_gateways_is_what_can_be_answered_in_time(gateways):
    """Twice what the device can do; bounds alone decide. Had each gateway as many places as the
    device has rows in the timeout, with two of them as many would expire as are answered."""
    profile = tuple((rows, 32, service_s(rows, 32)) for rows in (1, 8, 32))
    settings = DispatcherSettings(
        (32,),
        max_size=32,
        slo_s=TIMEOUT_S,
        max_slo_share=1.0,
        profile=profile,
        queue_timeout_s=TIMEOUT_S,
        admission=AdmissionParameters(Mode.OFF),
    )
    rng, now, arrivals = random.Random(3), 0.0, []
    while now < 24.0:
        now += rng.expovariate(1100.0)
        gateway = rng.randrange(gateways)
        arrivals.append(Arrival(now, (32,), TIMEOUT_S, TIMEOUT_S, gateway=gateway))
    recorder = SimRecorder()
    world = World((SimDevice("r", service_s),), gateways=gateways)
    run(settings, arrivals, world, recorder)
    ends = [each for each in recorder.outcomes if each.arrival.at > 12.0]
    answered = sum(each.answered_at is not None for each in ends)
    expired = sum(each.reason is Reason.EXPIRED for each in ends)
    full = sum(each.reason is Reason.QUEUE_FULL for each in ends)
    assert answered > 0.95 * 12.0 * 32 / service_s(32, 32)
    assert answered + expired + full == len(ends)
    assert expired < 0.15 * answered
