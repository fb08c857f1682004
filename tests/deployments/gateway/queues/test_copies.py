"""Which leases race each other, and where a failed row is still hoped for."""

from __future__ import annotations

from typing import Any

from deployments.contract import errors
from deployments.gateway.queues.copies import Copies, PendingRowFailure
from routers.types import Dispatch

BOTH = ((1, 0), (1, 1))


def began(
    copies: Copies, lease_id: int, copy_of: int = 0, rows: tuple[tuple[int, int], ...] = BOTH
) -> None:
    copies.began(Dispatch(lease_id, f"r{lease_id}", rows, 8, 0.1, copy_of=copy_of))


def failed(row: int = 0) -> PendingRowFailure:
    nobody: Any = None
    return PendingRowFailure(nobody, (1, row), errors.RowFailed("stumbled"), "r1")


def test_a_row_that_the_copy_does_not_carry_is_not_hoped_for_there() -> None:
    copies = Copies()
    began(copies, 1)
    began(copies, 2, copy_of=1, rows=((1, 0),))
    assert not copies.hope(1, failed(row=1))
    assert copies.hope(1, failed(row=0))


def test_a_row_that_failed_in_the_only_lease_is_not_hoped_for() -> None:
    copies = Copies()
    began(copies, 1)
    assert not copies.hope(1, failed())
    assert copies.ended(1) == []


def test_a_row_that_failed_in_either_is_hoped_for_until_the_other_ends() -> None:
    for first, second in ((1, 2), (2, 1)):
        copies, hope = Copies(), failed()
        began(copies, 1)
        began(copies, 2, copy_of=1)
        assert copies.hope(first, hope)
        assert copies.ended(first) == []
        assert copies.is_hoped_for(second)
        assert copies.ended(second) == [hope]
        assert not copies.is_hoped_for(second)


def test_a_row_that_fails_when_the_other_has_ended_is_lost() -> None:
    copies = Copies()
    began(copies, 1)
    began(copies, 2, copy_of=1)
    copies.ended(1)
    assert not copies.hope(2, failed())


def test_a_copy_of_what_has_ended_stands_alone() -> None:
    copies = Copies()
    began(copies, 1)
    copies.ended(1)
    began(copies, 2, copy_of=1)
    assert not copies.hope(2, failed())


def test_nothing_is_kept_of_leases_that_have_ended() -> None:
    copies = Copies()
    began(copies, 1)
    began(copies, 2, copy_of=1)
    copies.hope(1, failed())
    copies.ended(2)
    copies.ended(1)
    assert not copies._open
    assert not copies._other
    assert not copies._hopes
