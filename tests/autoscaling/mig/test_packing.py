from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.mig.geometry import GPUS, KINDS, MEMORY_SLICES, fits, placed, with_usable
from autoscaling.mig.packing import Packing, SliceDemand, best_fit, pack
from tests.autoscaling.mig import exhaustive

H100 = GPUS["h100-80"]
CASES = exhaustive.cases()
PAGE = Path(__file__).parents[3] / "docs" / "mig.md"

demands = st.lists(
    st.tuples(st.integers(1, 5), st.integers(100, 100_000), st.sampled_from(["", "2g.20gb"])),
    max_size=5,
).map(lambda rows: [SliceDemand(f"m{n}", *row) for n, row in enumerate(rows)])


def possible(plan: Packing) -> None:
    """Every slice is a real one, holds its replica, and overlaps no other; none is used twice."""
    for gpu in plan.gpus:
        assert gpu.slices
        covered = [n for each in gpu.slices for n in each.placement.covers]
        assert len(covered) == len(set(covered))
        assert max(covered) < MEMORY_SLICES
        assert sum(each.profile.shape.compute for each in gpu.slices) <= 7
        for each in gpu.slices:
            assert each.placement.start in KINDS[each.profile.kind].starts
            assert each.placement.kind == each.profile.kind
            assert each.profile.usable_mib is not None
            assert each.profile.usable_mib >= each.demand.need_mib
            assert each.demand.profile in ("", each.profile.name)


def replicas_of(plan: Packing, name: str) -> list[int]:
    """Of each GPU."""
    return [sum(each.demand.name == name for each in gpu.slices) for gpu in plan.gpus]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CASES)))
def test_as_few_gpus_as_an_exhaustive_search_finds(number):
    case = CASES[number]
    plan = exhaustive.planned(case)
    possible(plan)
    assert not plan.rejected
    assert sum(len(gpu.slices) for gpu in plan.gpus) == case.replicas
    assert len(plan.gpus) == exhaustive.fewest(case)
    assert plan.proved


@pytest.mark.slow
def test_as_few_a30_as_an_exhaustive_search_of_its_own_placements_finds():
    for case in exhaustive.a30_cases():
        plan = exhaustive.planned(case)
        possible(plan)
        assert not plan.rejected
        assert len(plan.gpus) == exhaustive.fewest(case), case
        for gpu in plan.gpus:
            covered = [n for each in gpu.slices for n in gpu.gpu.slices(each.placement)]
            assert len(covered) == len(set(covered))
            assert set(covered) <= set(range(4))
            assert gpu.free_compute >= 0


@pytest.mark.parametrize(
    ("needs", "room", "free"),
    [
        ((5_000,), [["2g.12gb", "1g.6gb"], ["1g.6gb"] * 3], 3),
        ((11_000, 5_000), [["1g.6gb"]], 1),
        ((24_002,), [], 0),
    ],
)
def test_what_is_left_of_an_a30_is_told_in_its_own_slices(needs, room, free):
    (gpu,) = pack(GPUS["a30"], [SliceDemand(f"m{n}", 1, mib) for n, mib in enumerate(needs)]).gpus
    assert gpu.free_compute == free
    assert [sorted((each.name for each in some), reverse=True) for some in gpu.room] == room


def test_some_of_the_cases_are_harder_than_best_fit():
    def counts(plan):
        return tuple(sum(gpu.counts[k] for gpu in plan.gpus) for k in range(len(KINDS)))

    plans = [exhaustive.planned(case) for case in CASES]
    assert any(len(best_fit(counts(plan))) > len(plan.gpus) for plan in plans)


@pytest.mark.slow
def test_the_table_of_the_documentation_is_what_comes_out():
    assert exhaustive.table() in PAGE.read_text()


@given(demands, st.one_of(st.none(), st.integers(0, 4)))
def test_every_replica_is_placed_or_refused_and_no_placement_is_impossible(wanted, gpus):
    plan = pack(H100, wanted, gpus)
    possible(plan)
    assert gpus is None or len(plan.gpus) <= gpus
    for demand in wanted:
        refused = sum(each.replicas for each in plan.rejected if each.demand is demand)
        assert sum(replicas_of(plan, demand.name)) + refused == demand.replicas
    numbers = [(each.demand.name, each.number) for gpu in plan.gpus for each in gpu.slices]
    assert len(numbers) == len(set(numbers))


@given(demands)
def test_equal_input_gives_equal_output(wanted):
    assert pack(H100, wanted, 3) == pack(H100, list(wanted), 3)


def test_replicas_of_a_model_are_spread_where_that_costs_no_gpu():
    wanted = [SliceDemand("a", 2, 30_000), SliceDemand("b", 7, 3_000), SliceDemand("c", 3, 15_000)]
    plan = pack(H100, [*wanted, SliceDemand("d", 1, 3_000, "2g.20gb")])
    assert len(plan.gpus) == 3
    assert max(replicas_of(plan, "a")) == 1
    assert max(replicas_of(plan, "c")) == 1
    assert max(replicas_of(plan, "b")) == 3


def test_nothing_is_spread_where_that_would_cost_a_gpu():
    assert len(pack(H100, [SliceDemand("a", 7, 1_000)]).gpus) == 1


def test_with_too_few_gpus_each_gets_its_first_replica_before_any_gets_a_second():
    plan = pack(H100, [SliceDemand("a", 3, 30_000), SliceDemand("b", 3, 15_000)], 1)
    assert (sum(replicas_of(plan, "a")), sum(replicas_of(plan, "b"))) == (1, 2)
    reasons = {each.demand.name: (each.replicas, each.reason) for each in plan.rejected}
    assert reasons["a"] == (
        2, "finds no further 3g.40gb on 1 GPU, 1 of its replicas have one",
    )  # fmt: skip
    assert reasons["b"][0] == 1


def test_no_gpu_at_all_refuses_everything():
    plan = pack(H100, [SliceDemand("a", 2, 1_000)], 0)
    assert plan.gpus == ()
    assert [(each.replicas, each.reason) for each in plan.rejected] == [
        (2, "finds no further 1g.10gb on 0 GPUs")
    ]


@pytest.mark.parametrize(
    ("demand", "reason"),
    [
        (
            SliceDemand("a", 1, 90_000),
            "needs 90,000 MiB, and 7g.80gb, the largest slice of h100-80 whose size is known, "
            "holds 81,152",
        ),
        (
            SliceDemand("a", 1, 20_000, "1g.10gb"),
            "needs 20,000 MiB, and the 1g.10gb that it asks for holds 9,984",
        ),
        (
            SliceDemand("a", 1, 1, "1g.18gb"),
            "asks for 1g.18gb, which h100-80 has not; must be one of "
            "1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb",
        ),
    ],
)
def test_what_fits_no_slice_is_refused_with_the_reason(demand, reason):
    plan = pack(H100, [demand, SliceDemand("other", 1, 1_000)])
    assert [each.reason for each in plan.rejected] == [reason]
    assert replicas_of(plan, "other") == [1]


@pytest.mark.parametrize("name", ["gh200-144", "gb200-186", "b300-269", "gb300-278"])
def test_a_gpu_of_which_only_names_are_known_is_planned_with_what_a_node_says(name: str) -> None:
    gpu, demand = GPUS[name], [SliceDemand("a", 3, 10_000)]
    (refused,) = pack(gpu, demand).rejected
    assert f"nobody has published how much of {name}'s slices" in refused.reason
    assert "--usable must say" in refused.reason
    two = gpu.profiles[2].name
    (planned,) = pack(with_usable(gpu, {two: 11_000}), demand).gpus
    assert [each.profile.name for each in planned.slices] == [two] * 3


def test_sizes_that_nobody_knows_are_named():
    plan = pack(GPUS["b200-180"], [SliceDemand("a", 1, 30_000), SliceDemand("b", 1, 1, "3g.90gb")])
    first, second = plan.rejected
    assert first.reason.endswith(
        "the usable memory of 1g.45gb, 2g.45gb, 3g.90gb, 4g.90gb, 7g.180gb is not known"
    )
    assert second.reason == "asks for 3g.90gb, whose usable memory on b200-180 is not known"


def test_a_size_at_the_very_edge_of_a_slice_fits():
    for need, name in ((9_984, "1g.10gb"), (9_985, "1g.20gb"), (81_152, "7g.80gb")):
        assert pack(H100, [SliceDemand("a", 1, need)]).gpus[0].slices[0].profile.name == name
    assert pack(H100, [SliceDemand("a", 1, 81_153)]).gpus == ()


def test_what_is_wasted_is_told():
    (gpu,) = pack(H100, [SliceDemand("a", 2, 30_000)]).gpus
    assert gpu.free_compute == 1
    assert gpu.uncut_mib == 81_152 - 2 * 40_448
    assert gpu.spare_mib == 2 * (40_448 - 30_000)
    assert gpu.room == ()


def test_what_could_still_be_cut_is_told():
    (gpu,) = pack(H100, [SliceDemand("a", 1, 30_000)]).gpus
    assert [each.name for each in gpu.room[0]] == ["4g.40gb"]
    assert gpu.slices[0].placement.start == 4


def test_a_gpu_of_unknown_size_has_unknown_waste():
    (gpu,) = pack(GPUS["b200-180"], [SliceDemand("a", 3, 10_000)]).gpus
    assert gpu.uncut_mib is None


def test_hundreds_of_replicas_are_planned():
    wanted = [SliceDemand(f"m{n}", 10, 1_000 + 1_300 * n) for n in range(40)]
    plan = pack(H100, wanted)
    possible(plan)
    assert plan.proved
    assert all(fits(gpu.counts) and placed(gpu.counts) for gpu in plan.gpus)
