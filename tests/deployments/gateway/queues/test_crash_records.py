"""Who is suspected of ending replicas, who is convicted, and for how long."""

from __future__ import annotations

import numpy as np
import pytest

from deployments.contract import errors
from deployments.contract.description import CrashTerms
from deployments.gateway.queues import crash_records
from deployments.gateway.queues.crash_records import CrashRecords, fingerprints, same_row
from deployments.gateway.rows.types import RowColumn, Rows

ROW, OTHER = b"row", b"other"


@pytest.fixture
def records() -> CrashRecords:
    return CrashRecords(CrashTerms(refuse_s=100.0, tenant_budget=4))


def convict(records: CrashRecords, key: bytes = ROW, tenant: str = "t", now: float = 0.0) -> None:
    assert not records.lost(key, tenant, "a", now, begun_alone=False)
    assert records.lost(key, tenant, "b", now, begun_alone=True)


def test_nothing_is_known_at_first_and_newcomers_need_no_look(records: CrashRecords) -> None:
    assert not records
    assert not records.check([ROW], "t", 0.0)


def test_a_row_on_a_lost_replica_is_suspect_until_it_was_answered_or_time_has_passed(
    records: CrashRecords,
) -> None:
    records.lost(ROW, "t", "a", 0.0, begun_alone=False)
    assert records
    assert records.check([OTHER, ROW], "t", 99.9)
    assert not records.check([ROW], "t", 100.0)
    assert not records


def test_what_is_over_is_forgotten_though_nobody_asks_for_it_again(records: CrashRecords) -> None:
    convict(records)
    assert not records.check([OTHER], "somebody else", 99.0)
    assert records
    assert not records.check([OTHER], "somebody else", 110.0)
    assert not records


def test_the_second_replica_convicts_only_a_row_that_had_begun_alone(records: CrashRecords) -> None:
    assert not records.lost(ROW, "t", "a", 0.0, begun_alone=False)
    assert not records.lost(ROW, "t", "b", 1.0, begun_alone=False)
    assert records.lost(ROW, "t", "c", 2.0, begun_alone=True)
    assert records.convictions == 1


def test_two_leases_on_one_replica_are_one_loss(records: CrashRecords) -> None:
    assert not records.lost(ROW, "t", "a", 0.0, begun_alone=True)
    assert not records.lost(ROW, "t", "a", 0.0, begun_alone=True)


def test_a_convicted_row_is_refused_for_its_time_and_not_asked_back(records: CrashRecords) -> None:
    convict(records)
    with pytest.raises(errors.RowConvicted) as refused:
        records.check([OTHER, ROW], "somebody else", 99.0)
    assert refused.value.headers() == []
    assert not records.check([ROW], "somebody else", 200.0)


def test_one_more_conviction_than_the_budget_allows_refuses_the_tenant(
    records: CrashRecords,
) -> None:
    convict(records, now=0.0)
    assert not records.check([OTHER], "t", 1.0)
    convict(records, OTHER, now=50.0)
    with pytest.raises(errors.OverOwnLimit) as refused:
        records.check([b"new"], "t", 60.0)
    assert refused.value.retry_after_s == pytest.approx(40.0)
    assert not records.check([b"new"], "somebody else", 60.0)
    assert not records.check([b"new"], "t", 100.0)


def test_a_budget_of_0_is_none() -> None:
    records = CrashRecords(CrashTerms(100.0, 0))
    for key in (ROW, OTHER, b"third"):
        convict(records, key)
    assert not records.check([b"new"], "t", 1.0)


def test_what_is_remembered_is_bounded(
    records: CrashRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crash_records, "_MOST_ROWS", 2)
    monkeypatch.setattr(crash_records, "_MOST_TENANTS", 2)
    for number in range(5):
        convict(records, b"%d" % number, f"tenant {number}")
    assert (len(records._rows), len(records._spent)) == (2, 2)


def rows_of(*rows: list[int], outputs: tuple[str, ...] | None = None) -> Rows:
    arrays = [np.array(row, dtype=np.int64) for row in rows]
    column = RowColumn("INT64", arrays, [(len(row),) for row in rows])
    return Rows(len(rows), tuple(len(row) for row in rows), {"ids": column}, outputs)


def test_a_fingerprint_is_of_the_input_and_the_version_not_of_what_is_asked_of_it() -> None:
    (one,) = fingerprints(rows_of([1, 2]), "1")
    assert fingerprints(rows_of([1, 2], outputs=("x",)), "1") == [one]
    assert fingerprints(rows_of([1, 3]), "1") != [one]
    assert fingerprints(rows_of([1, 2]), "2") != [one]


@pytest.mark.parametrize(("row", "alike"), [(0, False), (1, True), (2, False)])
def test_rows_are_compared_by_length_and_elements(row: int, alike: bool) -> None:
    assert same_row(rows_of([1, 2]), 0, rows_of([1], [1, 2], [2, 1]), row) is alike
