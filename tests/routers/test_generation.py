"""A request that generates pays by the token, takes room for all of them, and shares the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from routers.api.actions import Abort, Action, Dispatch, Evict, Reject
from routers.api.errors import BadRequestEvent
from routers.api.events import AdaptersHeld, BlocksHeld, PeersServed
from routers.api.requests import Generation, LeaseEnd, Reason, Report, Tokens
from routers.api.settings import GenerationParameters
from tests.routers.conftest import Driver

EDGES = (64, 256, 1024, 4096, 16384, 65536)
# A weighted token is worth a millisecond, a prompt token takes a tenth of one to read.
FIXED = GenerationParameters(tokens_per_s=1000.0, prompt_tokens_per_s=10_000.0, block_tokens=16)
Start = Callable[..., Driver]


def begin(start: Start, *ids: str, capacity: float = 10_000, **more: Any) -> Driver:
    max_leases = more.pop("max_leases", 0)
    generation = more.pop("generation", FIXED)
    settings = {"bucket_edges": EDGES, "generation": generation} | more
    driver = start(**settings)
    driver.streams(*(ids or ("a",)), capacity=capacity, max_leases=max_leases)
    return driver


def sent(actions: list[Action]) -> list[Dispatch]:
    return [each for each in actions if isinstance(each, Dispatch)]


def one(actions: list[Action]) -> Dispatch:
    (only,) = sent(actions)
    return only


def taught(driver: Driver, outputs: int = 20, *, times: int = 10, prompt: int = 100) -> None:
    """Outputs have been so long."""
    for n in range(times):
        lease = one(driver.generate(9000 + n, prompt, 4000))
        driver.close(lease, tokens=Tokens(prompt, 0, outputs))


def start_of(driver: Driver, tenant: str) -> float:
    (flow,) = [f for f in driver.dispatcher.snapshot(driver.now).flows if f.tenant == tenant]
    return flow.start


def held(driver: Driver, replica_id: str = "a") -> float:
    return driver.dispatcher._replicas.by_id[replica_id].held


# ---- what it costs


def test_cost_is_weighted_tokens_of_prompt_and_expected_output(start: Start) -> None:
    driver = begin(start)
    lease = one(driver.generate(1, 100, 50))
    assert lease.predicted_s == pytest.approx((100 + 2 * 50) / 1000)


def test_what_was_not_served_is_given_back(start: Start) -> None:
    driver = begin(start)
    lease = one(driver.generate(1, 100, 500))
    driver.close(lease, tokens=Tokens(100, 0, 10))
    assert start_of(driver, "default") == pytest.approx((100 + 20) / 1000)


def test_output_beyond_the_prediction_is_paid_as_it_comes(start: Start) -> None:
    driver = begin(start, generation=replace(FIXED, output_tokens=10))
    lease = one(driver.generate(1, 100, 4000))
    assert start_of(driver, "default") == pytest.approx(0.12)
    driver.moves(lease, 100, 5)
    assert start_of(driver, "default") == pytest.approx(0.12)
    driver.moves(lease, 100, 500)
    assert start_of(driver, "default") == pytest.approx((100 + 1000) / 1000)
    driver.close(lease, tokens=Tokens(100, 0, 600))
    assert start_of(driver, "default") == pytest.approx((100 + 1200) / 1000)


def test_cached_prompt_costs_nothing(start: Start) -> None:
    driver = begin(start)
    lease = one(driver.generate(1, 100, 10))
    driver.close(lease, tokens=Tokens(100, 96, 10))
    assert start_of(driver, "default") == pytest.approx((4 + 20) / 1000)


@pytest.mark.parametrize("end", [LeaseEnd.BUSY, LeaseEnd.ABORTED, LeaseEnd.LOST])
def test_nobody_pays_for_what_never_began(start: Start, end: LeaseEnd) -> None:
    driver = begin(start)
    lease = one(driver.generate(1, 100, 10, retryable=False))
    driver.cancel(1)
    driver.close(lease, end)
    assert start_of(driver, "default") == 0.0


def test_whoever_leaves_pays_for_what_was_served(start: Start) -> None:
    driver = begin(start)
    lease = one(driver.generate(1, 100, 1000))
    driver.moves(lease, 100, 50)
    assert driver.cancel(1) == [Abort(lease.lease_id, "a")]
    driver.close(lease, LeaseEnd.ABORTED, tokens=Tokens(100, 0, 60))
    assert start_of(driver, "default") == pytest.approx((100 + 120) / 1000)


def test_replica_that_counts_nothing_is_believed_to_have_done_as_predicted(start: Start) -> None:
    driver = begin(start)
    driver.close(one(driver.generate(1, 100, 50)))
    assert start_of(driver, "default") == pytest.approx(0.2)


@pytest.mark.parametrize("output", [-3, pytest.param(float("nan"), marks=pytest.mark.interpreted)])
def test_impossible_counts_spoil_no_account(start: Start, output: int) -> None:
    driver = begin(start)
    lease = one(driver.generate(1, 100, 50))
    driver.moves(lease, -5, -7, held=100)
    driver.moves(lease, 100, 10)
    driver.moves(lease, 3, 2, cached=10**12, held=110)
    driver.moves(lease, 100, 10, held=float("nan"))
    driver.close(lease, tokens=Tokens(-1, 5, output))
    assert 0.0 <= start_of(driver, "default") <= 0.2


def test_flow_of_long_outputs_is_passed_by_one_of_short_ones(start: Start) -> None:
    """Equal weights: whoever was given more waits, whatever was predicted."""
    driver = begin(start, max_leases=1, generation=replace(FIXED, output_tokens=10))
    running = one(driver.generate(1, 100, 4000, tenant="long"))
    for n in range(4):
        driver.generate(10 + n, 100, 4000, tenant="long")
        driver.generate(20 + n, 100, 4000, tenant="short")
    order = []
    for _ in range(6):
        output = 1000 if running.charges[0][1] == "long" else 10
        running = one(driver.close(running, tokens=Tokens(100, 0, output)))
        order.append(running.charges[0][1])
    assert order == ["short"] * 4 + ["long"] * 2


# ---- room


def test_lease_takes_prompt_and_all_output_until_outputs_are_known(start: Start) -> None:
    driver = begin(start)
    driver.generate(1, 100, 50)
    assert held(driver) == 150


def test_lease_takes_prompt_and_usual_output_once_outputs_are_known(start: Start) -> None:
    driver = begin(start)
    taught(driver, 20)
    driver.generate(1, 100, 4000)
    assert 120 <= held(driver) <= 125


def test_room_follows_what_is_held_and_what_is_to_come(start: Start) -> None:
    driver = begin(start)
    lease = one(driver.generate(1, 100, 50))
    driver.moves(lease, 100, 10)
    assert held(driver) == 150
    driver.moves(lease, 100, 40, held=60)  # most of its prompt is shared with others
    assert held(driver) == 70


def test_output_beyond_all_known_ones_is_expected_to_double(start: Start) -> None:
    driver = begin(start)
    taught(driver, 20)
    lease = one(driver.generate(1, 100, 4000))
    driver.moves(lease, 100, 300)
    assert held(driver) == 100 + 600


@pytest.mark.parametrize(("most", "is_taken"), [(899, True), (900, True), (901, False)])
def test_request_larger_than_a_replicas_cache_is_refused(
    start: Start, most: int, is_taken: bool
) -> None:
    driver = begin(start, capacity=1000)
    actions = driver.generate(1, 100, most)
    if is_taken:
        assert len(sent(actions)) == 1
    else:
        assert actions == [Reject(1, Reason.TOO_LONG)]


def test_row_that_no_replica_can_hold_any_more_leaves(start: Start) -> None:
    driver = begin(start, max_leases=1)
    lease = one(driver.generate(1, 10, 10))
    driver.generate(2, 5000, 10)
    driver.streams("a", capacity=1000, max_leases=1)
    assert Evict(2, Reason.TOO_LONG) in driver.close(lease)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_replica_holds_no_more_leases_than_it_may(start: Start, most: int) -> None:
    driver = begin(start, max_leases=most)
    leases = [lease for n in range(5) for lease in sent(driver.generate(n, 10, 10))]
    assert len(leases) == most
    assert len(sent(driver.close(leases[0]))) == 1


def test_small_row_passes_one_that_has_no_room(start: Start) -> None:
    driver = begin(start, capacity=1000)
    driver.generate(1, 100, 500)
    assert sent(driver.generate(2, 800, 100)) == []
    assert one(driver.generate(3, 50, 50)).rows == ((3, 0),)


def test_room_is_saved_for_a_large_row_however_many_small_ones_come(start: Start) -> None:
    driver = begin(start, capacity=1000)
    running = [one(driver.generate(n, 50, 50)) for n in range(10)]
    driver.generate(100, 500, 100)
    passed = 0
    while not any(each.rows == ((100, 0),) for each in running):
        passed += 1
        assert passed < 25, "small rows kept a large one waiting"
        driver.generate(1000 + passed, 50, 50)
        running += sent(driver.close(running.pop(0), tokens=Tokens(50, 0, 50)))
        assert held(driver) <= 1000


def test_short_generation_does_not_wait_behind_its_own_tenants_long_ones(start: Start) -> None:
    """Prompts are alike; what may come of them is not."""
    driver = begin(start, max_leases=1)
    running = one(driver.generate(0, 50, 3000))
    for n in range(1, 9):
        driver.generate(n, 50, 3000)
    driver.generate(100, 50, 30)
    order = []
    for _ in range(3):
        running = one(driver.close(running, tokens=Tokens(50, 0, 10)))
        order.append(running.rows[0][0])
    assert 100 in order


# ---- long prompts


def test_long_prompts_are_read_one_after_another_and_short_ones_beside_them(start: Start) -> None:
    driver = begin(start, capacity=100_000)
    first = one(driver.generate(1, 5000, 10))
    assert sent(driver.generate(2, 5000, 10)) == []
    assert one(driver.generate(3, 50, 10)).rows == ((3, 0),)
    assert one(driver.moves(first, 5000, 1)).rows == ((2, 0),)


def test_long_prompts_together_may_be_as_long_as_the_bound(start: Start) -> None:
    driver = begin(start, capacity=100_000, generation=replace(FIXED, max_long_tokens=8000))
    assert sent(driver.generate(1, 3000, 10))
    assert sent(driver.generate(2, 5000, 10))
    assert not sent(driver.generate(3, 2100, 10))


def test_long_prompt_whose_caller_leaves_lets_the_next_one_in(start: Start) -> None:
    driver = begin(start, capacity=100_000)
    first = one(driver.generate(1, 5000, 10))
    driver.generate(2, 5000, 10)
    driver.cancel(1)
    assert one(driver.close(first, LeaseEnd.ABORTED)).rows == ((2, 0),)


def test_prompt_goes_to_the_replica_with_less_to_read(start: Start) -> None:
    driver = begin(start, "a", "b", capacity=100_000)
    long = one(driver.generate(1, 5000, 10))
    others = {one(driver.generate(n, 50, 10)).replica_id for n in range(2, 8)}
    assert others == {"a", "b"} - {long.replica_id}


# ---- affinity


BLOCKS = tuple(range(1, 63))  # of 992 tokens


def test_prompt_goes_where_its_start_was_read(start: Start) -> None:
    driver = begin(start, "a", "b", capacity=100_000)
    first = one(driver.generate(1, 1000, 10, BLOCKS))
    driver.close(first, tokens=Tokens(1000, 0, 10))
    for n in range(2, 7):
        lease = one(driver.generate(n, 1000, 10, BLOCKS))
        assert lease.replica_id == first.replica_id
        assert lease.predicted_s == pytest.approx((1000 - 992 + 20) / 1000)
        driver.close(lease, tokens=Tokens(1000, 992, 10))


def test_preference_yields_to_what_a_replica_has_to_read_first(start: Start) -> None:
    driver = begin(start, "a", "b", capacity=100_000)
    first = one(driver.generate(1, 1000, 10, BLOCKS))
    driver.close(first, tokens=Tokens(1000, 0, 10))
    busy = one(driver.generate(2, 2000, 10, BLOCKS + tuple(range(1000, 1063))))
    assert busy.replica_id == first.replica_id
    assert one(driver.generate(3, 1000, 10, BLOCKS)).replica_id != first.replica_id


def test_affinity_that_is_off_takes_turns(start: Start) -> None:
    driver = begin(start, "a", "b", generation=replace(FIXED, affinity="off"))
    used = set()
    for n in range(4):
        lease = one(driver.generate(n, 1000, 10, BLOCKS, session="s"))
        used.add(lease.replica_id)
        driver.close(lease, tokens=Tokens(1000, 0, 10))
    assert used == {"a", "b"}


def test_session_goes_where_it_was_served_last(start: Start) -> None:
    driver = begin(start, "a", "b", generation=replace(FIXED, affinity="session"))
    first = one(driver.generate(1, 1000, 10, session="s"))
    driver.close(first, tokens=Tokens(1000, 0, 10))
    for n in range(2, 6):
        lease = one(driver.generate(n, 1000, 10, session="s"))
        assert lease.replica_id == first.replica_id
        driver.close(lease, tokens=Tokens(1000, 500, 10))


# ---- replicas that tell what they hold


def telling(start: Start, **held: tuple[int, ...]) -> Driver:
    driver = begin(start, *held, capacity=100_000)
    for name, blocks in held.items():
        driver.step(BlocksHeld(name, blocks, whole=True))
    return driver


def test_a_prompt_goes_to_the_replica_that_says_it_has_it(start: Start) -> None:
    for name in ("a", "b"):
        held = {"a": (), "b": ()} | {name: BLOCKS}
        lease = one(telling(start, **held).generate(1, 1000, 10, BLOCKS))
        assert lease.replica_id == name
        assert lease.predicted_s == pytest.approx((1000 - 16 * len(BLOCKS) + 20) / 1000)


def test_a_prompt_that_was_dropped_is_predicted_to_be_read(start: Start) -> None:
    driver = telling(start, a=BLOCKS)
    driver.step(BlocksHeld("a", (), BLOCKS))
    assert one(driver.generate(1, 1000, 10, BLOCKS)).predicted_s == pytest.approx(1.02)


def test_two_requests_that_begin_alike_go_together_before_anything_is_told(start: Start) -> None:
    driver = telling(start, a=(), b=())
    first = one(driver.generate(1, 1000, 10, BLOCKS))
    driver.moves(first, 1000, 1)
    assert one(driver.generate(2, 1000, 10, BLOCKS)).replica_id == first.replica_id


@pytest.mark.parametrize("end", [LeaseEnd.BUSY, LeaseEnd.ABORTED, LeaseEnd.DONE])
def test_what_was_not_read_is_not_known(start: Start, end: LeaseEnd) -> None:
    driver = telling(start, a=())
    first = one(driver.generate(1, 1000, 10, BLOCKS, retryable=False))
    driver.cancel(1)
    driver.close(first, end)
    driver.now += 10.0
    assert one(driver.generate(2, 1000, 10, BLOCKS)).predicted_s == pytest.approx(1.02)


def test_what_is_told_is_trusted_whatever_estimates_were_worth(start: Start) -> None:
    driver = begin(start, "a", capacity=100_000)
    for n in range(50):
        driver.close(one(driver.generate(n, 1000, 10, BLOCKS)), tokens=Tokens(1000, 0, 10))
    assert driver.dispatcher.snapshot(driver.now).generation.trust < 0.2
    driver.step(BlocksHeld("a", BLOCKS, whole=True))
    lease = one(driver.generate(99, 1000, 10, BLOCKS))
    assert lease.predicted_s == pytest.approx((1000 - 16 * len(BLOCKS) + 20) / 1000)
    driver.close(lease, tokens=Tokens(1000, 16 * len(BLOCKS), 10))
    found = driver.dispatcher.snapshot(driver.now).generation
    assert (found.told.predicted, found.told.found, found.told_replicas) == (
        16 * len(BLOCKS), 16 * len(BLOCKS), 1,
    )  # fmt: skip
    assert found.estimated.predicted > 0


def turns(start: Start, **held: tuple[int, ...]) -> tuple[Driver, Dispatch]:
    """A session whose first turn, of `BLOCKS` and a long answer, was at the first replica."""
    driver = telling(start, **held)
    first = one(driver.generate(1, 16 * len(BLOCKS) + 1, 900, BLOCKS, session="s"))
    driver.close(first, tokens=Tokens(16 * len(BLOCKS) + 1, 0, 900))
    driver.step(BlocksHeld(first.replica_id, BLOCKS))
    return driver, first


NEXT = (*range(900_000, 900_050),)


def test_a_session_stays_where_its_answer_still_is(start: Start) -> None:
    driver, first = turns(start, a=(), b=())
    (other,) = {"a", "b"} - {first.replica_id}
    driver.step(BlocksHeld(other, BLOCKS + NEXT[:30]))  # more than half of the prompt
    second = one(driver.generate(2, 1800, 10, BLOCKS + NEXT, session="s"))
    assert second.replica_id == first.replica_id
    driver.close(second)
    driver.step(BlocksHeld(first.replica_id, (), BLOCKS[-1:]))
    assert one(driver.generate(3, 1800, 10, BLOCKS + NEXT, session="s")).replica_id == other


def test_a_session_goes_on_anywhere_once_its_replica_has_dropped_it(start: Start) -> None:
    driver, first = turns(start, a=(), b=())
    driver.step(BlocksHeld(first.replica_id, (), BLOCKS[5:]))
    (other,) = {"a", "b"} - {first.replica_id}
    driver.step(BlocksHeld(other, BLOCKS[:6]))  # one block more
    assert one(driver.generate(2, 1800, 10, BLOCKS + NEXT, session="s")).replica_id == other


def test_a_prompt_that_does_not_go_on_is_no_turn_of_the_session(start: Start) -> None:
    driver, _ = turns(start, a=(), b=())
    lease = one(driver.generate(2, 1000, 10, NEXT, session="s"))
    assert lease.predicted_s == pytest.approx(1.02)


def test_an_adapter_that_a_replica_cannot_load_is_asked_of_another(start: Start) -> None:
    driver = begin(start, "a", "b", generation=replace(FIXED, adapters_resident=2))

    def ask(request_id: int) -> Dispatch:
        law = Generation(10, 1, (), "law")
        return one(driver.arrive(request_id, 100, generation=law))

    first = ask(1)
    driver.step(AdaptersHeld(first.replica_id, (), 0.0, ("law",)))
    driver.close(first)  # with an error, and no tokens
    for n in range(2, 6):
        lease = ask(n)
        assert lease.replica_id != first.replica_id
        driver.step(AdaptersHeld(lease.replica_id, ("law",), 0.1))
        driver.close(lease, tokens=Tokens(100, 0, 10))


def test_prefixes_of_a_replica_that_has_gone_are_forgotten(start: Start) -> None:
    driver = begin(start, "a", "b", capacity=100_000)
    first = one(driver.generate(1, 1000, 10, BLOCKS))
    driver.close(first, tokens=Tokens(1000, 0, 10))
    driver.streams(*({"a", "b"} - {first.replica_id}), capacity=100_000)
    driver.streams("a", "b", capacity=100_000)
    lease = one(driver.generate(2, 1000, 10, BLOCKS))
    assert lease.predicted_s == pytest.approx(1.02)


def test_engine_that_caches_nothing_is_soon_not_counted_on(start: Start) -> None:
    driver = begin(start, capacity=100_000)
    for n in range(100):
        lease = one(driver.generate(n, 1000, 10, BLOCKS))
        driver.close(lease, tokens=Tokens(1000, 0, 10))
    assert lease.predicted_s == pytest.approx(1.02, rel=0.05)
    for n in range(100, 300):
        lease = one(driver.generate(n, 1000, 10, BLOCKS))
        driver.close(lease, tokens=Tokens(1000, 992, 10))
    assert lease.predicted_s == pytest.approx(0.028, rel=0.1), "it caches again"


# ---- time


def test_idle_replica_refuses_nobody(start: Start) -> None:
    driver = begin(start, late="refuse")
    for n in range(50):
        lease = one(driver.generate(n, 8000, 1000, at=10.0 * n, slo_s=0.5))
        driver.moves(lease, 8000, 1, at=10.0 * n + 2.0)  # which is late, every time
        driver.close(lease, tokens=Tokens(8000, 0, 1))


def test_first_token_is_awaited_before_the_deadline(start: Start) -> None:
    """What reading such a prompt takes is left before the deadline."""
    driver = begin(start, max_leases=1)
    for n in range(20):
        lease = one(driver.generate(n, 1000, 10, at=driver.now + 1.0))
        driver.moves(lease, 1000, 1, at=driver.now + 0.3)
        driver.close(lease, tokens=Tokens(1000, 0, 10))
    lease = one(driver.generate(100, 1000, 10))
    driver.generate(101, 1000, 10, slo_s=2.0)
    tracked = driver.dispatcher._requests.live[101]
    assert 0.3 <= tracked.request.deadline - tracked.latest_start <= 0.5


def test_answers_that_come_whole_say_nothing_of_first_tokens(start: Start) -> None:
    driver = begin(start, generation=GenerationParameters())
    before = driver.dispatcher.snapshot(0.0).generation
    for n in range(20):
        lease = one(driver.generate(n, 1000 + 100 * n, 400, at=20.0 * n))
        driver.close(lease, at=20.0 * n + 10.0, tokens=Tokens(1000, 0, 400))
    after = driver.dispatcher.snapshot(driver.now).generation
    assert before is not None
    assert after is not None
    assert after.prompt_tokens_per_s == before.prompt_tokens_per_s
    driver.generate(100, 1000, 400, slo_s=2.0)
    tracked = driver.dispatcher._requests.live[100]
    assert tracked.latest_start == tracked.request.deadline


def test_newcomer_that_cannot_have_its_first_token_in_time_is_late(start: Start) -> None:
    driver = begin(start, max_leases=1, late="refuse")
    driver.generate(1, 100, 4000)
    told = []
    for n in range(2, 12):
        told += driver.generate(n, 4000, 1000, slo_s=1.0)
    assert any(isinstance(each, Reject) and each.reason is Reason.LATE for each in told)


def test_promised_time_a_token_bounds_what_runs_at_once(start: Start) -> None:
    """A step takes 10 ms and 1 ms a sequence: 20 ms a token are kept by ten."""
    profile = tuple((n, n, 0.010 + 0.001 * n) for n in (1, 2, 4, 8, 16, 32, 64, 128))
    generation = replace(FIXED, tpot_s=0.020, profile=profile)
    driver = begin(start, capacity=1e6, generation=generation)
    first = one(driver.generate(0, 10, 10))
    driver.close(first)
    leases = [lease for n in range(1, 50) for lease in sent(driver.generate(n, 10, 10))]
    assert len(leases) == 10


def test_frozen_core_learns_nothing_of_generations(start: Start) -> None:
    driver = begin(start, generation=GenerationParameters(block_tokens=16), frozen=True)
    before = driver.dispatcher.snapshot(0.0).generation
    for n in range(20):
        lease = one(driver.generate(n, 100, 400, at=float(2 * n)))
        driver.moves(lease, 100, 1, at=2.0 * n + 0.5)
        driver.close(lease, at=2.0 * n + 1.5, tokens=Tokens(100, 0, 50))
    assert driver.dispatcher.snapshot(50.0).generation == before


def test_more_urgent_row_stops_none_that_has_a_token(start: Start) -> None:
    driver = begin(start, max_leases=1, preempt_streams=True)
    lease = one(driver.generate(1, 100, 50, priority=2))
    driver.moves(lease, 100, 1)
    assert driver.generate(2, 100, 50, priority=0) == []


def test_request_that_generates_has_one_row(start: Start) -> None:
    driver = begin(start)
    with pytest.raises(BadRequestEvent, match="must generate and have one row"):
        driver.arrive(1, 10, 10, generation=Generation(5))


def test_lost_row_runs_again_elsewhere(start: Start) -> None:
    driver = begin(start, "a", "b")
    lease = one(driver.generate(1, 100, 50))
    again = one(driver.close(lease, LeaseEnd.LOST))
    assert again.replica_id != lease.replica_id
    assert driver.dispatcher.snapshot(driver.now).replicas[0].held + held(driver, "b") == 150


def test_what_other_gateways_were_served_is_charged_though_no_request_ends(start: Start) -> None:
    driver = begin(start)
    lease = one(driver.generate(1, 100, 50, tenant="acme"))
    before = start_of(driver, "acme")
    told = Report(virtual_time=(0.0, 0.0), served=((0, "acme", 3.0), (0, "acme", float("nan"))))
    assert driver.step(PeersServed("a", told)) == []
    assert driver.step(PeersServed("gone", told)) == []
    assert start_of(driver, "acme") == pytest.approx(before + 3.0)
    driver.close(lease, tokens=Tokens(100, 0, 50))
