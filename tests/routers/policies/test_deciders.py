"""What hedging, silence, outliers and suspects say of what they see, which stays as it was."""

from __future__ import annotations

from typing import Any

import pytest

from routers.api.actions import Dispatch
from routers.api.settings import HedgeParameters, OutlierParameters
from routers.batch.hedging import Finding, Slowness
from routers.batch.lease import BatchLease, BatchReplica
from routers.policies.hedging import QuantileDelay
from routers.shared.health import Outliers, Verdict
from routers.state.replica_state import EJECTED

TAKES_S = 0.01


def sent(actions):
    return [each for each in actions if isinstance(each, Dispatch)]


class Seen:
    """A core's replicas, leases and rows, as its policies are shown them."""

    def __init__(self, core) -> None:
        self.core, self.scheduler = core, core.dispatcher

    def replica(self, replica_id: str) -> BatchReplica:
        return self.scheduler._replicas.by_id[replica_id]

    def lease(self, lease: Dispatch) -> BatchLease:
        return self.scheduler._leases.open[lease.lease_id]

    def values(self) -> list[Any]:
        """Of all fields of all of them; the records themselves by identity."""
        replicas, leases = (
            self.scheduler._replicas.by_id.values(),
            self.scheduler._leases.open.values(),
        )
        rows = [row for tracked in self.scheduler._requests.live.values() for row in tracked.rows]
        records = [*replicas, *leases, *rows]
        return [(name, repr_of(getattr(r, name))) for r in records for name in fields_of(r)]


def fields_of(record: Any) -> list[str]:
    slots = [name for each in type(record).__mro__ for name in getattr(each, "__slots__", ())]
    return [*slots, *getattr(record, "__dict__", {})]


def repr_of(value: Any) -> Any:
    plain = value is None or isinstance(value, bool | int | float | str)
    return value if plain else id(value)


@pytest.fixture
def seen(start):
    """Replicas `a` and `b` whose batches take 10 ms, as they have answered; none is raced."""
    core = start(
        initial_cost_s=TAKES_S,
        profile=((1, 10, TAKES_S),),
        hedge=HedgeParameters("off", budget=0.0),
        max_size=1,
        suspect_hold_s=20.0,
    )
    core.replicas("a", "b", capacity=2)
    for number in range(4):
        (lease,) = sent(core.arrive(10_000 + number))
        core.close(lease, at=core.now + TAKES_S, service_s=TAKES_S)
    return Seen(core)


# ---- hedging


def hedging_of(settings: HedgeParameters) -> Slowness:
    return Slowness(settings, QuantileDelay.of(settings))


def busy(seen) -> tuple[BatchLease, BatchLease]:
    """A lease that runs and one that is staged behind it."""
    seen.core.replicas("a", capacity=2)
    actions = seen.core.arrive(1) + seen.core.arrive(2)
    actions += seen.core.tick(seen.core.now + TAKES_S)
    runs, staged = (seen.lease(each) for each in sent(actions))
    return runs, staged


@pytest.mark.parametrize(
    ("mode", "after_s", "finding"),
    [
        ("late", 0.019, Finding.EARLY),
        ("late", 0.021, Finding.RACE),
        ("off", 0.021, Finding.EARLY),
        ("off", 3.1 * TAKES_S, Finding.OVERDUE),
    ],
)
def test_a_batch_is_raced_after_its_delay_and_overdue_far_beyond_its_prediction(
    seen, mode, after_s, finding
):
    runs, _ = busy(seen)
    hedging = hedging_of(HedgeParameters(mode, fixed_delay_s=0.02))
    before = seen.values()
    assert hedging.judge(runs, runs.starts_at + after_s) is finding
    assert (hedging.check_at(runs) > runs.starts_at + after_s) == (finding is Finding.EARLY)
    assert seen.values() == before


def test_what_waits_behind_a_slow_batch_is_not_overdue(seen):
    _, staged = busy(seen)
    hedging = hedging_of(HedgeParameters("off"))
    assert hedging.judge(staged, staged.starts_at + 9.0) is Finding.BEHIND


# ---- outliers


def test_three_slow_answers_eject_and_what_its_probes_take_decides_for_how_long(seen):
    outliers = Outliers(OutlierParameters(probe_s=1.0, max_probe_s=3.0))
    replica, pool = seen.replica("b"), seen.scheduler._replicas.by_id.values()
    replica.slowdown = 9.0
    before = seen.values()
    verdicts = [outliers.judge(replica, 9.0, pool) for _ in range(3)]
    assert verdicts == [Verdict.AS_BEFORE, Verdict.AS_BEFORE, Verdict.EJECT]
    assert seen.values() == before

    seen.scheduler._replicas.eject(replica)
    outliers.ejected(replica)
    intervals = [outliers.probe_every_s(replica)]
    for ratio in (9.0, 9.0, 1.0):
        assert outliers.judge(replica, ratio, pool) is Verdict.PROBE
        intervals.append(outliers.probe_every_s(replica))
    assert intervals == [1.0, 2.0, 3.0, 1.0]
    replica.slowdown = 1.0
    assert outliers.judge(replica, 1.0, pool) is Verdict.READMIT
    assert replica.reasons & EJECTED  # until that is done
    seen.scheduler._replicas.readmit(replica)
