"""What the default batching policy answers to numbers: no queue is needed to ask it."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from routers.api.settings import BucketSettings, DispatcherSettings
from routers.estimates.batch_size import Gaps
from routers.estimates.groups import ReplicaGroup
from routers.policies.batching.ragged import RaggedBatching
from routers.policies.batching.types import BatchView, BucketView, PartialBatch

pytestmark = pytest.mark.interpreted

EDGES = (16, 64, 256)
PROFILE = tuple((n, edge, 0.002 + 1e-5 * n * edge) for n in (1, 4, 16) for edge in EDGES)
SETTINGS = DispatcherSettings(EDGES, max_size=16, profile=PROFILE)


class Bucket(BucketView):
    def __init__(self, edge, rows, turn=0.0, since=0.0, deadline=9.0):
        super().__init__(edge, rows, turn)
        self.head = since, deadline

    def since(self):
        return self.head[0]

    def deadline(self):
        return self.head[1]

    rank = deadline


class View(BatchView):
    def __init__(self, *buckets, **changes):
        self.group = ReplicaGroup("", 0, replace(SETTINGS, **changes))
        self.groups, self.gaps, self.by_share = None, {}, True
        self.replica_id, self.last_edge, self.starts_in_s = "r", 0, 0.0
        self.idle, self.others_idle, self.trusted = True, False, True
        self.late, self.ahead_s, self.buckets = False, 0.0, list(buckets)

    def max_rows(self, edge):
        return self.group.sizes.max_rows(edge) if self.trusted else 1


def chosen(view, now=0.0):
    return RaggedBatching().choose(view, now)


def test_the_bucket_that_fills_most_of_a_batch_leads():
    assert chosen(View(Bucket(16, 3), Bucket(64, 9))).edge == 64


def test_of_full_ones_the_one_whose_turn_it_is_leads():
    assert chosen(View(Bucket(16, 99, turn=2.0), Bucket(64, 99, turn=1.0))).edge == 64


def test_a_bucket_that_would_have_waited_too_long_leads():
    buckets = Bucket(16, 1, turn=1.0, since=5.0), Bucket(64, 9, turn=2.0, since=5.0)
    assert chosen(View(*buckets), now=5.01).edge == 64
    assert chosen(View(*buckets), now=5.07).edge == 16


def test_the_bucket_whose_shape_is_loaded_leads_while_it_costs_less():
    buckets = Bucket(16, 9, turn=1.0), Bucket(64, 1, turn=1.5)
    for switch_s, edge in ((0.4, 16), (0.6, 64)):
        view = View(*buckets, buckets=BucketSettings(fixed_shapes=True, switch_s=switch_s))
        view.last_edge = 64
        assert chosen(view).edge == edge


def test_where_rows_are_compared_the_first_row_leads():
    view = View(Bucket(16, 99, deadline=2.0), Bucket(64, 1, deadline=1.0))
    view.by_share = False
    assert chosen(view).edge == 64


def test_rows_are_late_that_are_not_in_time_in_most_of_a_full_batch():
    view = View(Bucket(64, 10))
    view.starts_in_s = 0.5
    predicted_s = view.group.cost.predict(7, 64, "r", 0.99)
    assert chosen(view, now=1.0).late_before == pytest.approx(1.5 + predicted_s)
    view.late = True
    assert chosen(view, now=1.0).late_before == -inf


def test_the_last_idle_replica_holds_while_a_row_is_expected_soon():
    view = View(Bucket(16, 1), hold="auto")
    view.gaps = {16: Gaps(0.0001, 1.0)}
    assert chosen(view, now=1.0).hold_until == pytest.approx(1.0002)
    assert chosen(view, now=1.001).hold_until is None
    view.others_idle = True
    assert chosen(view, now=1.0).hold_until is None


def riders(view, batch, *shorter):
    return RaggedBatching().riders(view, batch, *shorter)


def batch_of(view, length, rows):
    batch = PartialBatch(view.group, "r", 64, 16 - rows)
    for _ in range(rows):
        batch.add(length)
    return batch


def test_shorter_rows_ride_where_that_saves_their_own_batch():
    view = View(Bucket(64, 1))
    view.gaps = {16: Gaps(5.0, 0.0)}
    assert riders(view, batch_of(view, 20, 1), 16, 2, 32) == 2
    view.gaps = {16: Gaps(1e-5, 0.0)}  # another batch of theirs comes anyway
    assert riders(view, batch_of(view, 60, 1), 16, 2, 32) == 0


def test_none_ride_with_a_batch_of_a_replica_that_is_not_known_or_beside_an_idle_one():
    for name, value in (("trusted", False), ("others_idle", True)):
        view = View(Bucket(64, 1))
        setattr(view, name, value)
        assert riders(view, batch_of(view, 20, 1), 16, 2, 32) == 0
        assert not RaggedBatching().backfills(view, batch_of(view, 20, 1), 0.0)


def test_late_rows_ride_while_little_is_on_time_or_only_guests_are():
    view = View(Bucket(64, 1))
    batch, ragged = batch_of(view, 20, 1), RaggedBatching()
    assert ragged.backfills(view, batch, 0.009)
    assert not ragged.backfills(view, batch, 0.011)
    batch.guests_left = True
    assert ragged.backfills(view, batch, 0.011)
