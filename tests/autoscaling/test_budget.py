"""Who gets replicas when there are too few."""

from hypothesis import given
from hypothesis import strategies as st

from autoscaling.budget import COST, Claim, Grant, ceilings, share
from autoscaling.settings import Budget, Needs

GPU = Needs((("GPU", 1.0),), 2.0)


def claim(model, asked, least=0, priority=0, draining=0, needs=GPU):
    return Claim(model, "", needs, asked, least, draining, priority)


def counts(claims, most):
    return {model: grant.count for (model, _), grant in share(claims, most).items()}


def test_what_fits_is_granted():
    assert counts([claim("a", 3), claim("b", 2)], {"GPU": 5.0}) == {"a": 3, "b": 2}


def test_without_a_bound_everything_is_granted():
    assert counts([claim("a", 300)], {}) == {"a": 300}


def test_urgent_first():
    claims = [claim("a", 5, priority=1), claim("b", 4, priority=0)]
    assert counts(claims, {"GPU": 6.0}) == {"a": 2, "b": 4}


def test_equals_share_evenly_and_leave_what_they_do_not_want():
    claims = [claim("a", 9), claim("b", 9), claim("c", 1)]
    assert counts(claims, {"GPU": 7.0}) == {"a": 3, "b": 3, "c": 1}


def test_shares_are_of_resources_and_not_of_replicas():
    double = Needs((("GPU", 2.0),))
    assert counts([claim("a", 9), claim("b", 9, needs=double)], {"GPU": 8.0}) == {"a": 4, "b": 2}


def test_nobody_falls_below_its_minimum():
    claims = [claim("a", 9, priority=0), claim("b", 3, least=2, priority=5)]
    assert counts(claims, {"GPU": 4.0}) == {"a": 2, "b": 2}
    assert counts(claims, {"GPU": 1.0})["b"] == 2


def test_what_drains_still_holds_its_device():
    claims = [claim("a", 4, draining=0), claim("b", 1, draining=3)]
    assert counts(claims, {"GPU": 6.0}) == {"a": 2, "b": 1}


def test_money_is_a_bound_as_well_and_is_named():
    granted = share([claim("a", 9)], {COST: 5.0})
    assert granted["a", ""] == Grant(2, COST)


def test_bound_that_cut_is_named():
    needs = Needs((("CPU", 1.0), ("GPU", 1.0)))
    granted = share([claim("a", 9, needs=needs)], {"CPU": 100.0, "GPU": 3.0})
    assert granted["a", ""] == Grant(3, "GPU")


def test_who_needs_none_of_what_is_short_is_not_cut():
    needs = Needs((("CPU", 1.0),))
    claims = [claim("a", 9), claim("b", 9, needs=needs)]
    assert counts(claims, {"GPU": 2.0}) == {"a": 2, "b": 9}


def test_resource_that_the_cluster_lacks_altogether_grants_none():
    assert counts([claim("a", 2)], {"GPU": 0.0}) == {"a": 0}


def test_ceiling_is_the_lower_of_budget_and_cluster():
    budget = Budget((("GPU", 4.0), ("mig", 2.0)), 7.0)
    assert ceilings(budget, {"GPU": 8.0, "CPU": 16.0}) == {
        "GPU": 4.0,
        "mig": 2.0,
        "CPU": 16.0,
        COST: 7.0,
    }
    assert ceilings(Budget((("GPU", 9.0),)), None) == {"GPU": 9.0}


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 3), st.integers(0, 2), st.integers(0, 3)),
        min_size=1,
        max_size=8,
    ),
    st.floats(0.0, 30.0),
)
def test_grants_fit_and_never_exceed_what_is_asked_or_fall_below_a_minimum(rows, room):
    claims = [
        claim(f"m{n}", asked, min(asked, least), priority, draining)
        for n, (asked, least, priority, draining) in enumerate(rows)
    ]
    granted = counts(claims, {"GPU": room})
    for each in claims:
        assert each.minimum <= granted[each.model] <= each.asked
    unavoidable = sum(each.minimum + each.draining for each in claims)
    used = sum(granted[each.model] + each.draining for each in claims)
    assert used <= max(room, unavoidable) + 1e-6
