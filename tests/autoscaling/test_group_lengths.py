"""Groups that end at a length: those that alone take longer rows are sized by the demand for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.demand import Demand
from autoscaling.settings import GroupTerms, ModelTerms, Needs, PolicySettings
from autoscaling.sizing import Option, Service, Sizing
from autoscaling.types import DemandReading
from tests.autoscaling.fake_cluster import FakeCluster

SMALL = GroupTerms("small", 1, 50, needs=Needs((), 1.0), max_length=128)
LARGE = GroupTerms("large", 0, 20, needs=Needs((), 10.0))


def sized(*groups, **policy):
    sizing = Sizing()
    model = ModelTerms("m", 0.5, groups, policy=PolicySettings(**policy))
    sizing.adopt(model, tuple(Option(each, Service(), each.max) for each in groups))
    return sizing


def model(*groups, **policy):
    return ModelTerms("m", 0.5, groups or (SMALL, LARGE), policy=PolicySettings(**policy))


# ---- sizes ---------------------------------------------------------------------------------------


def test_short_work_alone_needs_no_large_replica():
    assert sized(SMALL, LARGE).size(5.0, longer={128: 0.0})["large"] == 0


def test_long_work_is_done_by_the_large_group_and_the_rest_by_the_cheaper_one():
    both = sized(SMALL, LARGE).size(10.0, longer={128: 3.0})
    assert both["large"] == sized(LARGE).size(3.0)["large"]
    assert 10 <= sum(both.values()) <= 17


def test_all_work_that_is_long_needs_no_more_small_replicas_than_the_minimum():
    assert sized(SMALL, LARGE).size(6.0, longer={128: 6.0})["small"] == 1


def test_the_least_long_work_needs_a_large_replica():
    assert sized(SMALL, LARGE).size(1.0, longer={128: 0.001})["large"] == 1


def test_a_lost_large_replica_is_covered_by_a_large_one():
    assert sized(SMALL, LARGE, survive=1).size(2.0, longer={128: 0.1})["large"] == 2


def test_a_spare_replica_can_take_the_longest_rows_that_come():
    without, with_spare = (
        sized(SMALL, LARGE, spare=n).size(3.0, longer={128: 1.0}) for n in (0, 1)
    )
    assert with_spare == without | {"large": without["large"] + 1}
    none_long = sized(SMALL, LARGE, spare=1).size(3.0, longer={128: 0.0})
    assert none_long["large"] == 0


@given(
    work=st.floats(0.01, 30.0),
    long=st.floats(0.0, 1.0),
    longest=st.floats(0.0, 1.0),
)
def test_every_part_of_the_work_finds_as_many_replicas_as_it_would_need_alone(work, long, longest):
    middle = GroupTerms("middle", 0, 50, needs=Needs((), 3.0), max_length=512)
    parts = {128: long * work, 512: longest * long * work}
    counts = sized(SMALL, middle, LARGE).size(work, longer=parts)
    for length, able in ((512, (LARGE,)), (128, (middle, LARGE)), (0, (SMALL, middle, LARGE))):
        need = sized(*able).size(parts.get(length, work))
        assert sum(counts[each.name] for each in able) >= sum(need.values()) - 1


# ---- demand --------------------------------------------------------------------------------------


def test_the_demand_for_long_rows_is_counted_apart():
    demand = Demand()
    for second in range(10):
        demand.on_report(
            "a",
            DemandReading(2.0 * second, requests=second, longer_s={128: 0.5 * second},
                          longer_backlog_s={128: 0.25}, backlog_s=1.0),
            float(second),
        )  # fmt: skip
    view = demand.view((8.0,), 9.0)
    assert (view.rate(8.0), view.longer[128].rate(8.0)) == (2.0, 0.5)
    assert view.longer[128].backlog_s == 0.25
    demand.gone("a")
    assert demand.view((8.0,), 9.0).longer == {}


def test_an_amount_of_long_work_that_is_none_is_refused():
    with pytest.raises(ValueError, match="finite"):
        Demand().on_report("a", DemandReading(longer_s={128: float("nan")}), 1.0)


# ---- over time -----------------------------------------------------------------------------------


def cluster(share, *groups, **policy):
    made = FakeCluster(model(*groups, **policy), hot=1)
    made.models["m"].longer = {128: share}
    return made


def test_each_group_follows_the_demand_for_its_lengths():
    made = cluster(0.3)
    made.run(120, 10.0)
    assert 3 <= made.target(group="large") <= 7
    assert made.target(group="large") + made.target(group="small") >= 11
    made.models["m"].longer = {128: 0.0}
    made.run(1500, 10.0)
    assert made.target(group="large") <= 1


def test_a_large_group_without_replicas_is_started_for_the_first_long_rows():
    made = cluster(0.0)
    made.group(group="large").hot = made.group(group="large").target = 0
    made.run(60, 2.0)
    assert made.target(group="large") == 0
    made.models["m"].longer = {128: 0.05}
    made.run(4, 2.0)
    assert made.target(group="large") >= 1


def test_a_burst_of_long_rows_that_all_of_the_work_hides_is_seen():
    made = cluster(0.01)
    made.run(200, 30.0)
    before = made.target(group="large")
    made.models["m"].longer = {128: 0.15}
    made.run(12, 30.0)
    assert made.target(group="large") >= before + 3


def test_a_sleeping_model_wakes_with_the_group_that_takes_what_waits():
    made = cluster(1.0, GroupTerms("small", 0, 9, max_length=128), LARGE)
    for each in ("small", "large"):
        made.group(group=each).hot = made.group(group=each).target = 0
    made.core.set_described("m", True)
    made.run(10, 0.0)
    assert made.target(group="large") == made.target(group="small") == 0
    made.run(4, 1.0)
    assert made.target(group="large") >= 1
