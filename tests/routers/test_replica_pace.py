"""A replica's pace is told from waits that do not overlap; one that is slow is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from routers.api.actions import Action, Dispatch
from routers.api.requests import LeaseEnd, Tokens
from routers.api.settings import GenerationParameters, HedgeParameters, OutlierParameters
from routers.estimates.engine_speed import ReplicaPace
from tests.routers.conftest import Driver

Start = Callable[..., Driver]
FIXED = GenerationParameters(tokens_per_s=1000.0, output_tokens=20)


def took(pace: ReplicaPace, began_at: float, now: float, predicted_s: float) -> float | None:
    return pace.took("a", began_at, now, predicted_s, alone=False)


def test_one_that_was_never_measured_is_as_quick_as_the_others() -> None:
    assert ReplicaPace().slowdown("a") == 1.0


def test_waits_of_one_window_make_one_verdict() -> None:
    pace = ReplicaPace()
    assert took(pace, 0.0, 0.1, 0.05) == pytest.approx(2.0)
    assert took(pace, 0.1, 0.7, 0.2) is None
    assert took(pace, 0.7, 1.1, 0.1) == pytest.approx(3.0)


def test_a_stall_that_all_streams_felt_is_in_one_verdict() -> None:
    pace = ReplicaPace()
    verdicts = [took(pace, 0.0, 0.6, 0.1) for _ in range(16)]
    assert [each for each in verdicts if each is not None] == [pytest.approx(6.0)]
    assert took(pace, 0.6, 1.6, 1.0) == pytest.approx(1.0)


def test_one_stall_or_two_are_no_slowdown() -> None:
    pace = ReplicaPace()
    for n, took_s in enumerate((0.9, 0.9, 0.3, 0.3, 0.3, 0.9)):
        took(pace, 2.0 * n, 2.0 * n + took_s, 0.3)
        assert pace.slowdown("a") == pytest.approx(1.0)


def test_slowdown_follows_verdicts_and_is_forgotten_with_the_replica() -> None:
    pace = ReplicaPace()
    for n in range(10):
        took(pace, 2.0 * n, 2.0 * n + 0.9, 0.3)
    assert pace.slowdown("a") == pytest.approx(3.0)
    pace.forget("a")
    assert pace.slowdown("a") == 1.0


# ---- what follows from it


def sent(actions: list[Action]) -> list[Dispatch]:
    return [each for each in actions if isinstance(each, Dispatch)]


class Pool:
    """Three replicas; `a` takes `factor` times as long to a first token as the others."""

    def __init__(self, start: Start, factor: float, **more: Any) -> None:
        self.factor, self.requests = factor, 0
        hedge = HedgeParameters("off", budget=1.0)
        self.driver = start(
            bucket_edges=(64, 256), generation=FIXED, hedge=hedge,
            outliers=OutlierParameters(**more),
        )  # fmt: skip
        self.driver.streams("a", "b", "c", capacity=1000)

    def serve(self, rounds: int) -> list[str]:
        """Three at once a round, a second apart; who was asked."""
        asked = []
        for _ in range(rounds):
            leases, now = [], self.driver.now
            for _ in range(3):
                self.requests += 1
                leases += sent(self.driver.generate(self.requests, 100, 20))
            asked += [lease.replica_id for lease in leases if not lease.copy_of]
            for lease in sorted(leases, key=self.takes_s):
                self.driver.moves(lease, 100, 1, at=now + self.takes_s(lease))
            for lease in leases:
                if lease.lease_id in self.driver.open:
                    end = LeaseEnd.ABORTED if lease.copy_of else LeaseEnd.DONE
                    self.driver.close(lease, end, tokens=Tokens(100, 0, 1))
            self.driver.tick(now + 1.0)
        return asked

    def takes_s(self, lease: Dispatch) -> float:
        return 0.01 * (self.factor if lease.replica_id == "a" else 1.0)

    def ejected(self) -> list[str]:
        seen = self.driver.dispatcher.snapshot(self.driver.now).replicas
        return [each.replica_id for each in seen if each.ejected]


def test_a_replica_whose_first_tokens_are_slow_is_ejected_and_not_asked(start: Start) -> None:
    pool = Pool(start, 5.0, probe_s=1e9, max_probe_s=1e9)
    pool.serve(20)
    assert pool.ejected() == ["a"]
    assert "a" not in pool.serve(5)


@pytest.mark.parametrize(("factor", "ratio"), [(1.5, 2.0), (5.0, float("inf"))])
def test_a_replica_within_the_ratio_stays(start: Start, factor: float, ratio: float) -> None:
    pool = Pool(start, factor, eject_ratio=ratio)
    pool.serve(30)
    assert pool.ejected() == []


def test_an_ejected_replica_is_probed_and_taken_back_once_it_is_quick(start: Start) -> None:
    pool = Pool(start, 5.0, max_probe_s=2.0)
    pool.serve(20)
    assert pool.ejected() == ["a"]
    assert pool.driver.dispatcher.snapshot(pool.driver.now).probes > 0
    pool.factor = 1.0
    pool.serve(20)
    assert pool.ejected() == []
    assert "a" in pool.serve(3)


def test_a_probe_gives_nothing_to_the_caller_and_ends_with_its_first_token(start: Start) -> None:
    pool = Pool(start, 5.0, probe_s=1.0)
    while not pool.ejected():
        pool.serve(1)
    pool.driver.tick(pool.driver.now + 2.0)
    lease, probe = sent(pool.driver.generate(5000, 100, 20))
    assert (probe.replica_id, probe.copy_of) == ("a", lease.lease_id)
    (abort,) = pool.driver.moves(probe, 100, 1)
    assert getattr(abort, "lease_id", 0) == probe.lease_id
    assert pool.driver.moves(lease, 100, 1) == []
    pool.driver.close(probe, LeaseEnd.ABORTED, tokens=Tokens(100, 0, 1))


def test_a_probe_whose_request_was_lost_elsewhere_is_its_run(start: Start) -> None:
    pool = Pool(start, 5.0, probe_s=1.0)
    while not pool.ejected():
        pool.serve(1)
    pool.driver.tick(pool.driver.now + 2.0)
    lease, probe = sent(pool.driver.generate(5000, 100, 20))
    assert pool.driver.close(lease, LeaseEnd.LOST) == []
    assert pool.driver.moves(probe, 100, 1) == []
    assert pool.driver.close(probe, tokens=Tokens(100, 0, 5)) == []
    assert pool.driver.dispatcher.snapshot(pool.driver.now).leases == 0
