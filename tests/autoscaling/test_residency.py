"""What pool replicas hold: room, stays, swaps and spread."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoscaling.pool import MARGIN, ResidentWant, choose_residents
from autoscaling.settings import PoolTerms
from autoscaling.types import PoolReading, ResidentReading

TERMS = PoolTerms(max=4, memory_bytes=300, residency_s=10.0, residency_loads=10.0)
NOW = 1000.0


def resident(model, size=100, load_s=1.0, since=0.0, busy=False, serves=True):
    return ResidentReading(model, serves, size, load_s, since, busy)


def replica(*residents, name="p0", memory=300):
    used = sum(each.size_bytes for each in residents)
    return PoolReading(name, residents, memory - used)


def want(model, rate=0.0, urgent_s=0.0, load_s=1.0, size=100, dedicated=0):
    return ResidentWant(model, urgent_s, rate, load_s, size, dedicated)


def chosen(replicas, wants, terms=TERMS, now=NOW):
    pool = {each.replica: each for each in replicas}
    return choose_residents(pool, {each.model: each for each in wants}, terms, now)


def test_no_replicas_hold_nothing():
    assert chosen([], [want("a", 1.0)]) == {}


def test_those_with_most_work_a_byte_fill_the_room():
    wants = [want("a", 0.1), want("b", 0.4), want("c", 0.3), want("d", 0.2)]
    assert chosen([replica()], wants) == {"p0": ("b", "c", "d")}


def test_a_model_nobody_asks_for_is_not_loaded():
    assert chosen([replica()], [want("a"), want("b", 0.1)]) == {"p0": ("b",)}


def test_what_is_held_stays_while_nothing_needs_its_room():
    assert chosen([replica(resident("a"))], [want("a")]) == {"p0": ("a",)}


def test_the_least_valuable_goes_where_more_is_held_than_there_is():
    """As when another process takes memory of the same GPU."""
    held = replica(resident("a"), resident("b"), resident("c"), memory=200)
    wants = [want("a", 0.2), want("b", 0.1), want("c", 0.3)]
    assert chosen([held], wants) == {"p0": ("c", "a")}


def test_a_model_that_is_not_wanted_any_more_goes():
    assert chosen([replica(resident("gone"))], [want("a", 0.1)]) == {"p0": ("a",)}


def test_a_busy_model_that_is_not_wanted_keeps_its_room_until_it_is_done():
    busy = replica(resident("gone", size=250, busy=True))
    assert chosen([busy], [want("a", 0.1)]) == {"p0": ()}


def test_slow_loads_stay_where_quick_ones_go():
    held = replica(resident("slow", load_s=5.0), resident("quick", load_s=1.0), memory=200)
    wants = [want("slow", 0.1, load_s=5.0), want("quick", 0.1), want("new", 0.5)]
    assert chosen([held], wants) == {"p0": ("new", "slow")}


def test_a_small_model_stays_where_a_large_one_goes():
    held = replica(resident("large", size=200), resident("small", size=100))
    wants = [want("large", 0.1, size=200), want("small", 0.1), want("new", 0.5)]
    assert set(chosen([held], wants)["p0"]) == {"new", "small"}


def test_only_what_is_needed_goes():
    held = replica(resident("tiny", size=10), resident("large", size=290))
    wants = [want("tiny", 0.0001, size=10), want("large", 0.01, size=290), want("new", 0.5)]
    assert set(chosen([held], wants)["p0"]) == {"new", "tiny"}


def test_waiting_work_is_loaded_before_a_forecast():
    wants = [want("forecast", 0.3), want("urgent", 0.01, urgent_s=5.0)]
    assert chosen([replica(memory=100)], wants) == {"p0": ("urgent",)}


def test_one_waiting_request_does_not_evict_what_serves_many():
    held = replica(resident("hot"), memory=100)
    assert chosen([held], [want("hot", 0.5), want("tail", urgent_s=0.05)]) == {"p0": ("hot",)}


def test_work_that_waits_long_enough_evicts_even_a_hot_model():
    held = replica(resident("hot"), memory=100)
    stay_worth_s = 0.5 * 10.0
    enough = want("tail", urgent_s=MARGIN * stay_worth_s + 0.1)
    assert chosen([held], [want("hot", 0.5), enough]) == {"p0": ("tail",)}


def test_nothing_is_swapped_for_what_is_worth_about_the_same():
    held = replica(resident("a"), memory=100)
    assert chosen([held], [want("a", 0.2), want("b", 0.19 * MARGIN)]) == {"p0": ("a",)}
    assert chosen([held], [want("a", 0.2), want("b", 0.21 * MARGIN)]) == {"p0": ("b",)}


def test_busy_loading_and_young_models_stay():
    new = want("new", 5.0)
    for held in (
        resident("a", busy=True),
        resident("a", serves=False),
        resident("a", since=NOW - 9.9),
        resident("a", since=NOW - 49.9, load_s=5.0),
    ):
        assert chosen([replica(held, memory=100)], [want("a"), new]) == {"p0": ("a",)}
    old = resident("a", since=NOW - 10.0)
    assert chosen([replica(old, memory=100)], [want("a"), new]) == {"p0": ("new",)}


def test_replicas_of_its_own_leave_less_of_a_model_to_the_pool():
    wants = [want("served", 0.6, dedicated=2), want("alone", 0.3)]
    assert chosen([replica(memory=100)], wants) == {"p0": ("alone",)}


def test_models_are_spread_over_replicas():
    wants = [want("a", 0.4), want("b", 0.3), want("c", 0.2), want("d", 0.1)]
    held = chosen([replica(name="p0"), replica(name="p1")], wants)
    assert {frozenset(each) for each in held.values()} == {
        frozenset({"a", "d"}),
        frozenset({"b", "c"}),
    }


def test_a_model_that_is_too_much_for_one_replica_gets_another():
    wants = [want("hot", 1.2), want("b", 0.2)]
    held = chosen([replica(name="p0"), replica(name="p1")], wants)
    assert sorted(model for each in held.values() for model in each) == ["b", "hot", "hot"]


def test_a_long_queue_takes_as_many_replicas_as_will_still_find_work():
    pool = [replica(name=f"p{n}") for n in range(4)]
    held = chosen(pool, [want("a", urgent_s=2.5, load_s=1.0)])
    assert sum("a" in each for each in held.values()) == 3


def test_an_unknown_size_is_taken_for_the_largest_known():
    wants = [want("known", 0.1, size=200), want("unknown", 0.5, size=0)]
    assert chosen([replica()], wants) == {"p0": ("unknown",)}


def test_sizes_that_nobody_knows_are_found_out_one_replica_at_a_time():
    wants = [want("a", 0.5, size=0), want("b", 0.4, size=0)]
    assert chosen([replica()], wants) == {"p0": ("a",)}
    loading = resident("a", size=0, serves=False)
    assert chosen([replica(loading)], wants) == {"p0": ("a",)}
    assert chosen([replica(resident("a", size=100))], wants) == {"p0": ("a", "b")}


def test_less_memory_than_is_held_evicts_the_least():
    held = PoolReading("p0", (resident("a"), resident("b"), resident("c")), free_bytes=-50)
    wants = [want("a", 0.3), want("b", 0.1), want("c", 0.2)]
    assert chosen([held], wants) == {"p0": ("a", "c")}


def test_less_memory_than_is_held_evicts_none_that_works():
    held = PoolReading("p0", (resident("a", busy=True), resident("b")), free_bytes=-150)
    assert chosen([held], [want("a"), want("b", 0.9)]) == {"p0": ("a",)}


# -- whatever it is told

MODELS = "abcdefgh"


@st.composite
def cases(draw):
    sizes = {model: draw(st.integers(1, 200)) for model in MODELS}
    wants = [
        want(
            model,
            draw(st.floats(0, 3)),
            draw(st.floats(0, 20)),
            draw(st.floats(0.1, 5)),
            sizes[model] if draw(st.booleans()) else 0,
            draw(st.integers(0, 3)),
        )
        for model in draw(st.sets(st.sampled_from(MODELS)))
    ]
    pool = []
    for n in range(draw(st.integers(0, 3))):
        residents = tuple(
            resident(model, sizes[model], 1.0, draw(st.floats(0, NOW)), draw(st.booleans()))
            for model in draw(st.sets(st.sampled_from(MODELS), max_size=4))
        )
        pool.append(PoolReading(f"p{n}", residents, draw(st.integers(0, 300))))
    return pool, wants


@given(cases())
def test_room_is_never_exceeded_and_nothing_with_work_goes(case):
    pool, wants = case
    held = chosen(pool, wants)
    named = {each.model: each for each in wants}
    known = {each.model: each.size_bytes for one in pool for each in one.residents}
    assert set(held) == {each.replica for each in pool}
    for reading in pool:
        models = held[reading.replica]
        assert len(set(models)) == len(models)
        assert set(models) <= set(named)
        here = {each.model: each.size_bytes for each in reading.residents}
        sizes = [here.get(m) or named[m].size_bytes or known.get(m, 0) for m in models]
        busy_s = sum(
            each.size_bytes for each in reading.residents if each.busy and each.model not in named
        )
        assert sum(sizes) + busy_s <= reading.free_bytes + sum(here.values())
        for each in reading.residents:
            if each.busy and each.model in named:
                assert each.model in models


@given(cases())
def test_under_the_same_demand_it_settles_and_swaps_nothing_any_more(case):
    pool, wants = case
    wants = [want(w.model, w.rate, w.urgent_s, w.load_s, w.size_bytes or 100) for w in wants]
    named = {each.model: each for each in wants}
    pool = [replica(name=each.replica, memory=each.free_bytes) for each in pool]
    before = None
    for _ in range(10):
        held = chosen(pool, wants, now=1e9)
        if held == before:
            return
        before = held
        pool = [
            replica(
                *(resident(m, named[m].size_bytes) for m in held[each.replica]),
                name=each.replica,
                memory=each.free_bytes + sum(r.size_bytes for r in each.residents),
            )
            for each in pool
        ]
    raise AssertionError(f"still swaps: {before}")


# -- engines that sleep


def sleeper(name, residents=(), **kept):
    return PoolReading(name, residents, 300 - sum(r.size_bytes for r in residents), kept)


def test_an_engine_wakes_where_it_sleeps_although_another_replica_has_less_to_do():
    """A load elsewhere would keep its work waiting for longer."""
    busy = resident("busy", since=NOW)
    pool = [sleeper("free"), sleeper("bed", (busy,), llm=0.5)]
    llm = ResidentWant("llm", 0.4, 0.5, 0.5, 100, anew_s=30.0)
    wants = [llm, want("busy", 0.6)]
    assert chosen(pool, wants) == {"free": (), "bed": ("busy", "llm")}
    assert chosen([sleeper("free"), sleeper("bed", (busy,))], wants)["free"] == ("llm",)


def test_a_load_evicts_nobody_where_another_replica_needs_only_wake_it():
    """Loading it on the free replica takes 30 s of its work; waking it costs what must go."""
    cheap = (resident("x", size=300),)
    pool = [sleeper("free"), sleeper("bed", cheap, llm=0.5)]
    slow = ResidentWant("llm", 1.0, 0.5, 0.5, 100, anew_s=30.0)
    assert chosen(pool, [slow, want("x", 0.001, size=300)])["bed"] == ("llm",)
    quick = ResidentWant("llm", 1.0, 0.5, 0.5, 100, anew_s=0.5)
    assert chosen(pool, [quick, want("x", 0.001, size=300)])["free"] == ("llm",)


def test_an_engine_stays_ten_times_its_waking_and_not_its_load():
    def held(since, wake_s):
        return [replica(ResidentReading("llm", True, 300, 60.0, since, False, wake_s))]

    wants = [ResidentWant("llm", 0.0, 0.0, 2.0, 300, anew_s=60.0), want("b", 1.0, size=300)]
    assert chosen(held(NOW - 19.0, 2.0), wants) == {"p0": ("llm",)}
    assert chosen(held(NOW - 21.0, 2.0), wants) == {"p0": ("b",)}
    assert chosen(held(NOW - 21.0, 0.0), wants) == {"p0": ("llm",)}


def test_an_engine_with_a_running_stream_never_goes():
    held = [replica(ResidentReading("llm", True, 300, 1.0, 0.0, True, 0.1))]
    assert chosen(held, [want("llm"), want("b", 100.0, urgent_s=100.0, size=300)]) == {
        "p0": ("llm",)
    }
