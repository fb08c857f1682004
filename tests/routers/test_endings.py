"""What a replica says of itself is believed as far as it can be true."""

from math import inf, isfinite, nan

import pytest

from routers.api.requests import Report
from routers.shared.endings import believable


def test_what_is_possible_is_believed_as_it_is():
    report = Report(0.5, 1, 1, 3, 0.1, 0.001, 2.0, (1.0, 0.0), ((0, "a", 0.5),), ())
    assert believable(report, 1.0) is report


@pytest.mark.parametrize("seconds", [nan, inf, -inf, -0.1, 1e300])
def test_impossible_seconds_say_nothing(seconds):
    report = Report(
        service_s=seconds, retry_in_s=seconds, transport_s=seconds, free_in_s=seconds,
        virtual_time=(3.0, seconds), served=((0, "a", seconds), (1, "b", 1.0), (-1, "c", 1.0)),
        waiting=((0, "a", seconds),),
    )  # fmt: skip
    said = believable(report, 0.25)
    assert said == Report(service_s=0.25, virtual_time=(3.0, 0.0), served=((1, "b", 1.0),))


@pytest.mark.parametrize("seconds", [nan, inf, -1.0, 1e300])
def test_nonsense_from_a_replica_spoils_no_flows_account(start, seconds):
    core = start(max_size=2, initial_cost_s=0.1)
    core.replicas("a")
    for number in range(1, 7):
        core.arrive(number, tenant="one" if number % 2 else "two")
    for _ in range(2):
        (lease,) = core.open.values()
        core.close(
            lease, service_s=seconds, free_in_s=seconds, virtual_time=(seconds,),
            served=((0, "one", seconds),), waiting=((0, "two", seconds),),
        )  # fmt: skip
    flows = core.dispatcher.snapshot(core.now).flows
    assert {flow.tenant for flow in flows} == {"one", "two"}
    assert all(isfinite(flow.start) and isfinite(flow.served_s) for flow in flows)
