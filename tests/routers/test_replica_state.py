"""What a gateway makes of a replica's reports: how early the next batch must leave."""

import pytest

from routers.api.requests import Replica, Report
from routers.api.settings import DispatcherSettings
from routers.batch.lease import BatchReplica
from routers.estimates.groups import ReplicaGroup


def replica(*reports: Report) -> BatchReplica:
    made = BatchReplica(Replica("r", 2), ReplicaGroup("", 0, DispatcherSettings((16,))))
    for report in reports:
        made.learn(report, 0.0, answered=True)
    return made


def test_alone_the_next_batch_leaves_the_transport_before_the_end():
    alone = replica(Report(transport_s=0.004, seen=1, held=1, inflight=1))
    assert alone.lead_s(1.0) == pytest.approx(0.004)


@pytest.mark.parametrize("sign", [{"inflight": 2}, {"waiting": ((0, "x", 1.0),)}])
def test_beside_other_gateways_it_leaves_sooner_by_what_may_be_off(sign):
    shared = replica(Report(transport_s=0.004, seen=1, held=1, **{"inflight": 1, **sign}))
    assert shared.lead_s(1.0) == pytest.approx(0.006 + 0.2)


def test_a_replica_that_the_others_have_left_is_ones_own_again():
    left = replica(
        Report(transport_s=0.004, seen=1, held=0, inflight=1),
        Report(transport_s=0.004, seen=2, held=0, inflight=0),
    )
    assert left.lead_s(1.0) == pytest.approx(0.004)
