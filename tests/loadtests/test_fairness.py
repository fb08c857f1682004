"""Water-filled shares and Jain's index over windows: is the judge itself right?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.results.fairness import Entitlement, Fairness, jain, shares_of

EQUAL = {"a": Entitlement(), "b": Entitlement()}


@pytest.mark.parametrize(
    ("values", "index"),
    [([], None), ([0, 0], 1.0), ([3], 1.0), ([1, 1, 1], 1.0), ([1, 0], 0.5), ([1, 0.5], 0.9)],
)
def test_jain(values, index):
    assert jain(values) == (None if index is None else pytest.approx(index))


def test_who_wants_less_than_its_part_leaves_the_rest_to_the_others():
    claims = {"a": Entitlement(), "b": Entitlement(), "c": Entitlement()}
    assert shares_of(9.0, {"a": 1.0, "b": 99.0, "c": 99.0}, claims) == dict.fromkeys("abc", 4.0)


def test_weights_part_what_all_want():
    claims = {"a": Entitlement(weight=4.0), "b": Entitlement(weight=1.0)}
    assert shares_of(10.0, {"a": 99.0, "b": 99.0}, claims) == {"a": 8.0, "b": 2.0}


def test_less_urgent_ones_part_what_the_urgent_leave():
    claims = {
        "now": Entitlement(priority=0),
        "later": Entitlement(priority=2),
        "too": Entitlement(priority=2),
    }
    shares = shares_of(10.0, {"now": 4.0, "later": 50.0, "too": 50.0}, claims)
    assert (shares["later"], shares["too"]) == (3.0, 3.0)


wants = st.dictionaries(
    st.sampled_from("abcdef"),
    st.tuples(st.floats(0, 100), st.floats(0.1, 10), st.integers(0, 2)),
    min_size=1,
)


@given(wants, st.floats(0, 300))
def test_shares_give_out_the_capacity_and_no_more_than_is_wanted(asked, capacity):
    claims = {name: Entitlement(weight, priority) for name, (_, weight, priority) in asked.items()}
    wanted = {name: want for name, (want, _, _) in asked.items()}
    shares = shares_of(capacity, wanted, claims)
    given_out = sum(min(shares[name], wanted[name]) for name in wanted)
    assert given_out == pytest.approx(min(capacity, sum(wanted.values())), rel=1e-6, abs=1e-6)


def test_equal_service_of_unequal_demand_is_fair():
    accounts = Fairness(EQUAL, 0.0, 20.0, min_batches=1)
    for second in range(20):
        accounts.came("a", second, 10.0)
        accounts.came("b", second, 0.3)
        accounts.batch(second)
        accounts.served("a", second, 0.7)
        accounts.served("b", second, 0.3)
    accounts.finish(20.0)
    assert [window.from_s for window in accounts.windows] == [0.0, 10.0]
    assert accounts.min_jain == pytest.approx(1.0)


def test_service_by_arrival_is_not():
    accounts = Fairness(EQUAL, 0.0, 10.0, min_batches=1)
    for second in range(10):
        accounts.came("a", second, 10.0)
        accounts.came("b", second, 1.0)
        accounts.batch(second)
        accounts.served("a", second, 10 / 11)
        accounts.served("b", second, 1 / 11)
    accounts.finish(10.0)
    assert accounts.min_jain < 0.65


def test_the_worst_window_counts():
    accounts = Fairness(EQUAL, 0.0, 20.0, min_batches=1)
    for second in range(20):
        starved = second >= 10
        for name in EQUAL:
            accounts.came(name, second, 1.0)
        accounts.batch(second)
        accounts.served("a", second, 1.0)
        accounts.served("b", second, 0.0 if starved else 1.0)
    accounts.finish(25.0)
    first, second = (window.jain for window in accounts.windows)
    assert (first, second) == (pytest.approx(1.0), pytest.approx(0.5))
    assert accounts.min_jain == second


def test_what_waits_from_before_is_still_wanted():
    accounts = Fairness(EQUAL, 10.0, 20.0, min_batches=0)
    accounts.came("a", 1.0, 5.0)
    accounts.came("b", 1.0, 5.0)
    accounts.served("a", 12.0, 5.0)
    accounts.finish(20.0)
    assert accounts.windows[0].tenants["b"].wanted == 5.0
    assert accounts.min_jain == pytest.approx(0.5)


def test_what_was_given_up_is_not_wanted_any_more():
    accounts = Fairness(EQUAL, 10.0, 20.0, min_batches=0)
    accounts.came("b", 1.0, 5.0)
    accounts.gone("b", 2.0, 5.0)
    accounts.came("a", 11.0, 5.0)
    accounts.served("a", 12.0, 5.0)
    accounts.finish(20.0)
    assert set(accounts.windows[0].tenants) == {"a"}


def test_tenants_of_few_batches_do_not_count():
    accounts = Fairness(EQUAL, 0.0, 10.0, min_batches=20)
    for _ in range(10):
        accounts.batch(1.0)
    accounts.came("a", 1.0, 9.0)
    accounts.served("a", 1.0, 9.0)
    accounts.finish(10.0)
    assert accounts.min_jain is None


def test_run_shorter_than_a_window_is_one_window():
    accounts = Fairness(EQUAL, 0.0, 4.0, min_batches=0)
    for name in EQUAL:
        accounts.came(name, 1.0, 1.0)
        accounts.served(name, 2.0, 1.0)
    accounts.finish(4.0)
    assert accounts.min_jain == 1.0
