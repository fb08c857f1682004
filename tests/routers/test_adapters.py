"""What a replica's adapters cost a request, by the gateway's account."""

from __future__ import annotations

import pytest

from routers.estimates.adapters import AdapterAccount


@pytest.fixture
def account() -> AdapterAccount:
    """Two replicas with two places each: one is full, one has a place left."""
    made = AdapterAccount(2)
    made.told("full", ["a", "b"], 0.5)
    made.told("free", ["c"], 0.5)
    return made


def test_an_adapter_that_is_there_costs_nothing(account: AdapterAccount) -> None:
    assert account.price_s("full", "a", 1.0) == 0.0
    assert account.price_s("full", "", 1.0) == 0.0


def test_a_free_place_costs_a_load_and_a_taken_one_more(account: AdapterAccount) -> None:
    for _ in range(5):
        account.asked("a")
        account.asked("b")
    assert account.price_s("free", "new", 1.0) == 0.5
    assert 0.5 < account.price_s("full", "new", 1.0) < 1.0


def test_what_another_replica_holds_too_is_cheap_to_lose(account: AdapterAccount) -> None:
    for _ in range(5):
        account.asked("a")
        account.asked("b")
    account.told("free", ["b", "c"], 0.5)
    assert account.price_s("full", "new", 1.0) == 0.5


def test_places_in_use_cost_as_long_as_a_request_takes(account: AdapterAccount) -> None:
    assert not account.sent("full", "a")
    assert not account.sent("full", "b")
    assert account.price_s("full", "new", 3.0) == 0.5 + 0.5 + 3.0
    account.ended("full", "b")
    assert account.price_s("full", "new", 3.0) < 1.0


def test_a_copy_is_dear_unless_the_adapter_is_popular(account: AdapterAccount) -> None:
    for name in "abc" * 10:
        account.asked(name)
    assert account.price_s("free", "a", 1.0) > 1.0
    for _ in range(100):
        account.asked("a")
    assert account.price_s("free", "a", 1.0) == 0.5


def test_a_lease_takes_the_place_of_the_least_popular(account: AdapterAccount) -> None:
    account.asked("a")
    assert account.sent("full", "new")
    assert account.holders("new") == ["full"]
    assert account.holders("b") == []
    assert account.holders("a") == ["full"]


def test_reports_count_but_for_what_is_on_its_way(account: AdapterAccount) -> None:
    assert account.sent("free", "new")
    account.told("free", ["c"], 0.2)
    assert account.holders("new") == ["free"]
    account.ended("free", "new")
    account.told("free", ["c"], 0.0)
    assert account.holders("new") == []
    assert account.load_s == 0.2


def test_what_was_not_loaded_in_the_end_is_not_held(account: AdapterAccount) -> None:
    assert account.sent("free", "new")
    account.told("free", ["c"], 0.2)
    account.ended("free", "new")
    assert account.holders("new") == []
    assert account.sent("free", "new")
    account.told("free", ["c", "new"], 0.2)
    account.ended("free", "new")
    assert account.holders("new") == ["free"]


def test_a_replica_that_cannot_load_it_is_dearer_than_all_others(account: AdapterAccount) -> None:
    assert account.sent("free", "new")
    account.told("free", ["c"], 0.5, ["new"])
    assert not account.sent("full", "a")
    assert not account.sent("full", "b")
    assert account.price_s("free", "new", 1.0) > account.price_s("full", "new", 1.0)
    assert account.holders("new") == [], "others are looked at as well"
    assert account.price_s("free", "c", 1.0) == 0.0
    account.told("free", ["c"], 0.5)
    assert account.price_s("free", "new", 1.0) == 0.0, "the lease is open: it is on its way"


def test_a_replica_that_is_gone_holds_nothing(account: AdapterAccount) -> None:
    account.forget("full")
    assert account.holders("a") == []
    account.ended("full", "a")  # of a lease that closes later


def test_weights_stay_finite() -> None:
    account = AdapterAccount(1)
    account.asked("old")
    for _ in range(250_000):
        account.asked("new")
    account.told("r", ["new"], 0.1)
    account.told("s", ["old"], 0.1)
    assert account.price_s("r", "old", 0.0) > 1.0
    assert account.price_s("s", "new", 0.0) == pytest.approx(0.1, rel=1e-3)
