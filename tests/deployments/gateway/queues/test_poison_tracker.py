"""Who is suspected of ending replicas, who is quarantined, and for how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from deployments.contract import errors
from deployments.contract.description import CrashTerms
from deployments.gateway.queues import lost_replicas
from deployments.gateway.queues.lost_replicas import LostRow, PoisonTracker, fingerprints, same_row
from deployments.gateway.rows import RowColumn, Rows

ROW, OTHER = b"row", b"other"


@pytest.fixture
def records() -> PoisonTracker:
    return PoisonTracker(CrashTerms(refuse_s=100.0, tenant_budget=4))


def quarantine(
    records: PoisonTracker, key: bytes = ROW, tenant: str = "t", now: float = 0.0
) -> None:
    """By two replicas of its own: none ends twice."""
    assert not records.lost(key, tenant, f"first with {key!r}", now, begun_alone=False)
    assert records.lost(key, tenant, f"second with {key!r}", now, begun_alone=True)


def test_nothing_is_known_at_first_and_newcomers_need_no_look(records: PoisonTracker) -> None:
    assert not records
    assert not records.check([ROW], "t", 0.0)


def test_a_row_on_a_lost_replica_is_suspect_until_it_was_answered_or_time_has_passed(
    records: PoisonTracker,
) -> None:
    records.lost(ROW, "t", "a", 0.0, begun_alone=False)
    assert records
    assert records.check([OTHER, ROW], "t", 99.9)
    assert not records.check([ROW], "t", 100.0)
    assert not records


def test_what_is_over_is_forgotten_though_nobody_asks_for_it_again(records: PoisonTracker) -> None:
    quarantine(records)
    assert not records.check([OTHER], "somebody else", 99.0)
    assert records
    assert not records.check([OTHER], "somebody else", 110.0)
    assert not records


def test_the_second_replica_quarantines_only_a_row_that_had_begun_alone(
    records: PoisonTracker,
) -> None:
    assert not records.lost(ROW, "t", "a", 0.0, begun_alone=False)
    assert not records.lost(ROW, "t", "b", 1.0, begun_alone=False)
    assert records.lost(ROW, "t", "c", 2.0, begun_alone=True)
    assert records.quarantined_total == 1


def test_two_leases_on_one_replica_are_one_loss(records: PoisonTracker) -> None:
    assert not records.lost(ROW, "t", "a", 0.0, begun_alone=True)
    assert not records.lost(ROW, "t", "a", 0.0, begun_alone=True)


def test_a_quarantined_row_is_refused_for_its_time_and_not_asked_back(
    records: PoisonTracker,
) -> None:
    quarantine(records)
    with pytest.raises(errors.RowQuarantined) as refused:
        records.check([OTHER, ROW], "somebody else", 99.0)
    assert refused.value.headers() == []
    assert not records.check([ROW], "somebody else", 200.0)


def test_one_more_quarantine_than_the_budget_allows_refuses_the_tenant(
    records: PoisonTracker,
) -> None:
    quarantine(records, now=0.0)
    assert not records.check([OTHER], "t", 1.0)
    quarantine(records, OTHER, now=50.0)
    with pytest.raises(errors.OverOwnLimit) as refused:
        records.check([b"new"], "t", 60.0)
    assert refused.value.retry_after_s == pytest.approx(40.0)
    assert not records.check([b"new"], "somebody else", 60.0)
    assert not records.check([b"new"], "t", 100.0)


def test_a_replica_that_two_inputs_were_on_is_charged_once(records: PoisonTracker) -> None:
    for key in (ROW, OTHER):
        records.lost(key, "t", "both were here", 0.0, begun_alone=False)
    records.lost(ROW, "t", "a", 0.0, begun_alone=True)
    records.lost(OTHER, "t", "b", 0.0, begun_alone=True)
    assert not records.check([b"new"], "t", 1.0)  # three of four
    records.lost(OTHER, "t", "c", 1.0, begun_alone=True)
    with pytest.raises(errors.OverOwnLimit):
        records.check([b"new"], "t", 2.0)


def alone(records: PoisonTracker, number: int, now: float, tenant: str = "t") -> None:
    """A row of its own each time ends a replica that had nothing else, and is not run again."""
    key, replica_id = b"new %d" % number, f"replica {number}"
    assert not records.lost(key, tenant, replica_id, now, begun_alone=False)
    records.lost_together(replica_id, [LostRow(key, tenant, number)], now)


def test_a_tenant_whose_rows_are_never_run_again_pays_all_the_same(records: PoisonTracker) -> None:
    for number in range(4):
        assert not records.check([b"new"], "t", float(number))
        alone(records, number, float(number))
    with pytest.raises(errors.OverOwnLimit) as refused:
        records.check([b"new"], "t", 4.0)
    assert refused.value.retry_after_s == pytest.approx(96.0)
    assert "4 replicas of the model have ended with rows of this tenant" in str(refused.value)
    assert not records.check([b"new"], "somebody else", 4.0)
    assert not records.check([b"new"], "t", 100.0)
    for now in (101.0, 104.0, 120.0):
        records.check([b"new"], "t", now)
    assert not records


def test_neighbours_that_are_answered_leave_the_one_that_pays(records: PoisonTracker) -> None:
    for number in range(4):
        neighbours = [(b"%d of %d" % (each, number), "other") for each in range(3)]
        both = [(b"new %d" % number, "t"), *neighbours]
        rows = [LostRow(*each, request) for request, each in enumerate(both)]
        now = 2.0 * number
        for key, tenant, _ in rows:
            records.lost(key, tenant, f"replica {number}", now, begun_alone=False)
        records.lost_together(f"replica {number}", rows[:2], now)  # in two leases
        records.lost_together(f"replica {number}", rows[2:], now)
        assert not records.check([b"x"], "t", now)
        for key, _ in neighbours:
            records.release(key)
    with pytest.raises(errors.OverOwnLimit):
        records.check([b"x"], "t", 9.0)
    assert not records.check([b"x"], "other", 9.0)


def test_who_is_answered_later_has_ended_nothing(records: PoisonTracker) -> None:
    for number in range(9):
        alone(records, number, 2.0 * number)
        records.release(b"new %d" % number)
    assert not records.check([b"x"], "t", 20.0)
    assert records.told(256, 20.0).spent == {}


def sent_batch(*, answered: bool = False) -> Any:
    """A batch of one row; `answered`: by a copy of it."""
    request = SimpleNamespace(tenant="t", request_id=1)
    member = SimpleNamespace(
        rows=rows_of([1, 2]), request=request, answers=["by a copy" if answered else None],
        sent_again=True,
    )  # fmt: skip
    lease = SimpleNamespace(alone=False, replica_id="a", rows=((1, 0),))
    return SimpleNamespace(lease=lease, members=[member], version="1", begun=False)


def test_a_row_whose_copy_is_answered_among_others_has_ended_nothing(
    records: PoisonTracker,
) -> None:
    sent = sent_batch()
    assert not list(records.lost_with(sent, 0.0))
    assert set(records.told(256, 0.0).spent) == {"t"}
    records.answered_among_others(sent)
    assert records.told(256, 0.0).spent == {}


def test_a_row_whose_copy_was_answered_before_the_loss_has_ended_nothing(
    records: PoisonTracker,
) -> None:
    assert not list(records.lost_with(sent_batch(answered=True), 0.0))
    assert records.told(256, 0.0).spent == {}


def test_rows_of_requests_that_were_sent_once_are_not_looked_at(
    records: PoisonTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not list(records.lost_with(sent_batch(), 0.0))
    sent = sent_batch()
    sent.members[0].sent_again = False
    monkeypatch.setattr(lost_replicas, "fingerprints", lambda *_: pytest.fail("it was hashed"))
    records.answered_among_others(sent)


def test_a_tenant_that_sends_several_rows_a_request_pays_as_well(records: PoisonTracker) -> None:
    for number in range(4):
        rows = [LostRow(b"%d of %d" % (each, number), "t", number) for each in range(3)]
        records.lost_together(f"replica {number}", rows, 2.0 * number)
    with pytest.raises(errors.OverOwnLimit):
        records.check([b"x"], "t", 9.0)


def test_what_is_unexplained_is_forgotten_in_its_time(records: PoisonTracker) -> None:
    alone(records, 1, 0.0)
    records.check([b"x"], "t", 99.0)
    assert not records.check([b"new 1"], "t", 101.0)  # which forgets the row's own record
    assert records
    records.check([b"x"], "t", 120.0)
    assert not records


def test_replicas_that_are_lost_at_once_are_no_tenants_doing(records: PoisonTracker) -> None:
    for number in range(9):
        alone(records, number, 0.1 * number)
    assert not records.check([b"x"], "t", 1.0)
    assert [len(each) for each in records.told(256, 1.0).spent.values()] == [1]


def test_several_rows_that_nobody_has_answered_accuse_nobody(records: PoisonTracker) -> None:
    for number in range(9):
        rows = [LostRow(b"a %d" % number, "t", 1), LostRow(b"b %d" % number, "other", 2)]
        records.lost_together(f"replica {number}", rows, 2.0 * number)
    assert not records.check([b"x"], "t", 20.0)


def test_what_a_tenant_pays_without_a_quarantine_counts_at_all_gateways(
    records: PoisonTracker, others: PoisonTracker
) -> None:
    for number in range(4):
        alone(records, number, float(number))
    tell(records, others, 4.0)
    with pytest.raises(errors.OverOwnLimit) as over:
        others.check([b"x"], "t", 4.0)
    assert over.value.retry_after_s == pytest.approx(96.0)
    records.release(b"new 0")
    tell(records, others, 5.0)
    assert not others.check([b"x"], "t", 5.0)


def test_a_budget_of_0_is_none() -> None:
    records = PoisonTracker(CrashTerms(100.0, 0))
    for key in (ROW, OTHER, b"third"):
        quarantine(records, key)
    assert not records.check([b"new"], "t", 1.0)


def test_what_is_remembered_is_bounded(
    records: PoisonTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_replicas, "_MAX_ROWS", 2)
    monkeypatch.setattr(lost_replicas, "_MAX_TENANTS", 2)
    for number in range(5):
        quarantine(records, b"%d" % number, f"tenant {number}")
    assert (len(records._rows), len(records._spent)) == (2, 2)


# ---- several gateways


@pytest.fixture
def others() -> PoisonTracker:
    """Another gateway's."""
    return PoisonTracker(CrashTerms(refuse_s=100.0, tenant_budget=4))


def tell(one: PoisonTracker, other: PoisonTracker, now: float = 0.0) -> set[bytes]:
    return other.on_report([one.told(256, now)], 1, now)


def refused(records: PoisonTracker, key: bytes, now: float) -> bool:
    try:
        records.check([key], "somebody", now)
    except errors.RowQuarantined:
        return True
    return False


def test_a_suspicion_is_shared_so_that_the_second_loss_anywhere_quarantines(
    records: PoisonTracker, others: PoisonTracker
) -> None:
    records.lost(ROW, "t", "a", 0.0, begun_alone=False)
    assert tell(records, others) == set()
    assert others.check([ROW], "t", 1.0)
    assert others.lost(ROW, "t", "b", 1.0, begun_alone=True)


def test_one_replica_that_two_gateways_lost_is_one_loss(
    records: PoisonTracker, others: PoisonTracker
) -> None:
    records.lost(ROW, "t", "a", 0.0, begun_alone=False)
    tell(records, others)
    assert not others.lost(ROW, "t", "a", 1.0, begun_alone=True)


def test_a_quarantine_is_shared_once_and_lasts_no_longer_there(
    records: PoisonTracker, others: PoisonTracker
) -> None:
    quarantine(records)
    assert tell(records, others, 40.0) == {ROW}
    assert tell(records, others, 41.0) == set()
    assert refused(others, ROW, 99.9)
    assert not refused(others, ROW, 100.0)
    assert others.quarantined_total == 0


def test_a_loss_more_of_what_is_quarantined_elsewhere_is_told_as_quarantined(
    records: PoisonTracker, others: PoisonTracker
) -> None:
    quarantine(records)
    tell(records, others)
    assert others.lost(ROW, "t", "c", 1.0, begun_alone=False)
    assert not others.lost(OTHER, "t", "c", 1.0, begun_alone=False)


def test_who_joins_later_hears_it_from_whoever_has_heard_it(
    records: PoisonTracker, others: PoisonTracker
) -> None:
    quarantine(records)
    tell(records, others)
    third = PoisonTracker(records.terms)
    assert tell(others, third, 50.0) == {ROW}


def test_two_gateways_do_not_keep_telling_each_other_what_is_over(
    records: PoisonTracker, others: PoisonTracker
) -> None:
    quarantine(records)
    for second in range(300):
        now = float(second)
        late = records.told(256, now)
        tell(others, records, now)
        others.on_report([late], 1, now + 2.0)
    assert not refused(records, ROW, 300.0)
    assert not refused(others, ROW, 300.0)


def test_an_answer_clears_what_others_suspect(
    records: PoisonTracker, others: PoisonTracker
) -> None:
    records.lost(ROW, "t", "a", 0.0, begun_alone=False)
    tell(records, others)
    others.release(ROW)
    tell(records, others)
    assert not others.check([ROW], "t", 1.0)


def test_an_answer_does_not_clear_what_is_quarantined(records: PoisonTracker) -> None:
    quarantine(records)
    records.release(ROW)
    assert refused(records, ROW, 1.0)


def test_the_budget_counts_replicas_at_all_gateways(
    records: PoisonTracker, others: PoisonTracker
) -> None:
    quarantine(records, now=0.0)
    quarantine(others, OTHER, now=50.0)
    tell(records, others, 50.0)
    with pytest.raises(errors.OverOwnLimit) as over:
        others.check([b"new"], "t", 60.0)
    assert over.value.retry_after_s == pytest.approx(40.0)
    assert not others.check([b"new"], "t", 100.0)


def test_a_replica_that_two_gateways_charge_a_tenant_with_counts_once(
    records: PoisonTracker, others: PoisonTracker
) -> None:
    """Both sent it the input, and heard of each other only then."""
    for gateway in (records, others):
        gateway.lost(ROW, "t", "a", 0.0, begun_alone=False)
        gateway.lost(ROW, "t", "b", 0.0, begun_alone=True)
    tell(records, others)
    assert not others.check([OTHER], "t", 1.0)
    quarantine(records, OTHER)
    tell(records, others)
    with pytest.raises(errors.OverOwnLimit):
        others.check([b"new"], "t", 1.0)


def test_losses_of_another_version_count_for_each_input(records: PoisonTracker) -> None:
    for key in (ROW, OTHER):
        records.lost_elsewhere([key], "t", 0.0)
        records.lost(key, "t", f"second with {key!r}", 0.0, begun_alone=True)
    with pytest.raises(errors.OverOwnLimit):
        records.check([b"new"], "t", 1.0)


def test_what_is_told_is_bounded_and_the_newest(records: PoisonTracker) -> None:
    for number in range(5):
        quarantine(records, b"%d" % number, f"tenant {number}", float(number))
    told = records.told(2, 5.0)
    assert {each.key for each in told.inputs} == {b"3", b"4"}
    assert set(told.spent) == {"tenant 3", "tenant 4"}


def test_whoever_tells_others_hears_of_each_loss(records: PoisonTracker) -> None:
    heard: list[int] = []
    records.on_loss = lambda: heard.append(1)
    quarantine(records)
    assert len(heard) == 2


def rows_of(*rows: list[int], outputs: tuple[str, ...] | None = None) -> Rows:
    arrays = [np.array(row, dtype=np.int64) for row in rows]
    column = RowColumn("INT64", arrays, [(len(row),) for row in rows])
    return Rows(len(rows), tuple(len(row) for row in rows), {"ids": column}, outputs)


def test_a_fingerprint_is_of_the_input_and_the_version_not_of_what_is_asked_of_it() -> None:
    (one,) = fingerprints(rows_of([1, 2]), "1")
    assert fingerprints(rows_of([1, 2], outputs=("x",)), "1") == [one]
    assert fingerprints(rows_of([1, 3]), "1") != [one]
    assert fingerprints(rows_of([1, 2]), "2") != [one]


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    (one,) = fingerprints(rows_of([1, 2]), "1")
    assert one.hex().startswith("d66579dd61923d09d9d06a38c14d1da3")


@pytest.mark.parametrize(("row", "alike"), [(0, False), (1, True), (2, False)])
def test_rows_are_compared_by_length_and_elements(row: int, alike: bool) -> None:
    assert same_row(rows_of([1, 2]), 0, rows_of([1], [1, 2], [2, 1]), row) is alike
