"""What callers feel of generation: first tokens, shares, caches, overload, lost replicas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from routers.api.requests import Reason
from tests.simulation.generation_load import ENGINE, Kind, engines, jain, play, weighted

CHAT = Kind("chat", 18, (30, 300), (20, 200), slo_s=1.0)
LONG = Kind("chat2", 1.35, (2000, 12_000), (20, 200), slo_s=4.0)  # 30 % of the device's time


@pytest.mark.slow
@pytest.mark.parametrize("tenant", ["chat", "documents"])
def test_short_chats_wait_half_as_long_as_in_one_queue_beside_long_prompts(tenant: str) -> None:
    """Also where both are one tenant's: its short rows do not wait behind its own long ones."""
    kinds = [CHAT, replace(LONG, tenant=tenant)]

    def p99_s(*, in_turn: bool) -> float:
        ran = play(kinds, 1, 60, in_turn=in_turn)
        times = sorted(
            outcome.first_at - outcome.arrival.at
            for outcome in ran.outcomes
            if outcome.arrival.lengths[0] < 2000
            and outcome.arrival.at > 10
            and outcome.first_at is not None
        )
        assert len(times) > 800
        return times[int(0.99 * len(times))]

    assert p99_s(in_turn=False) <= 0.5 * p99_s(in_turn=True)


@pytest.mark.slow
def test_prompts_read_one_after_another_keep_chats_prompt() -> None:
    """Against as many long prompts at once as there is room for."""
    kinds = [replace(CHAT, rate=30.6), replace(LONG, rate=0.99, prompt=(2000, 30_000))]
    bound = play(kinds, 2, 90)
    free = play(kinds, 2, 90, generation={"max_long_tokens": float("inf")})
    assert bound.first_token_s(0.99, "chat") < 0.8 * free.first_token_s(0.99, "chat")


@pytest.mark.slow
def test_tenants_of_long_and_of_short_outputs_are_given_as_many_tokens() -> None:
    """One asks for four times what the engine gives, the other for its share and more; nobody says
    how long outputs will be."""
    kinds = [
        Kind("long", 30, (50, 150), (600, 1000), most=2048, timeout_s=100),
        Kind("short", 120, (50, 150), (10, 60), most=2048, timeout_s=100),
    ]
    ran = play(kinds, 1, 60, max_queue_rows=100_000)
    for begin in (30.0, 40.0, 50.0):  # an output of 1,000 tokens takes half a minute
        shares = [weighted(ran.of(each.tenant), begin, begin + 10) for each in kinds]
        assert jain(shares) >= 0.95
    in_turn = play(kinds, 1, 60, in_turn=True)
    shares = [weighted(in_turn.of(each.tenant), 30, 60) for each in kinds]
    assert jain(shares) < 0.9


@pytest.mark.slow
def test_prompts_that_begin_alike_find_the_replica_that_has_read_them() -> None:
    """A hundred beginnings of a thousand tokens; no replica's cache holds all of them."""
    engine = replace(ENGINE, cache_tokens=90_000)
    kinds = [
        Kind(
            f"app{n}",
            0.32,
            (1040, 1200),
            (20, 80),
            256,
            shared=tuple(range(n << 20, (n << 20) + 63)),
        )
        for n in range(1, 101)
    ]
    names = [each.tenant for each in kinds]
    halves = [replace(each, rate=each.rate / 2) for each in kinds]
    alone = play(halves, 1, 60, engine=engine)
    pair, in_turn = (play(kinds, 2, 60, engine=engine, in_turn=each) for each in (False, True))
    assert pair.hit_rate() >= 0.9 * alone.hit_rate()
    assert pair.hit_rate() > 1.15 * in_turn.hit_rate()
    assert pair.first_token_s(0.99, *names) < 0.75 * in_turn.first_token_s(0.99, *names)


@pytest.mark.slow
@pytest.mark.parametrize("quantile", [0.9, 1.0])
def test_cache_is_never_promised_or_filled_beyond_what_it_holds(quantile: float) -> None:
    engine = replace(ENGINE, cache_tokens=30_000)
    kinds = [
        replace(CHAT, rate=40, output=(20, 400)),
        replace(LONG, rate=2, most=2000, output=(20, 1000)),
    ]
    ran = play(kinds, 2, 8, engine=engine, check=True, generation={"reserve_quantile": quantile})
    for replica in ran.replicas:
        assert replica.engine.counts.max_held <= engine.cache_tokens
        assert replica.engine.counts.max_held > 0.5 * engine.cache_tokens, "room was left unused"
        if quantile == 1.0:
            assert replica.engine.counts.preemptions == 0
    stopped = sum(replica.engine.counts.preemptions for replica in ran.replicas)
    assert stopped <= 0.02 * len(ran.outcomes)


@pytest.mark.slow
def test_first_tokens_stay_in_time_at_three_times_the_capacity() -> None:
    """Straight to the engine, nobody's would."""
    kinds = [
        replace(CHAT, rate=66, timeout_s=20.0),
        Kind("docs", 3, (2000, 8000), (20, 200), slo_s=2.0, timeout_s=20.0),
    ]
    most = play([replace(each, rate=each.rate / 3) for each in kinds], 1, 40)
    over = play(kinds, 1, 40)
    for name in ("chat", "docs"):
        before = sum(outcome.in_slo for outcome in most.of(name, after=10.0))
        now = sum(outcome.in_slo for outcome in over.of(name, after=10.0))
        assert now >= 0.95 * before
    in_turn = play(kinds, 1, 40, in_turn=True)
    assert sum(outcome.in_slo for outcome in in_turn.of("chat", after=10.0)) < 100


@pytest.mark.parametrize("late", ["demote", "refuse"])
def test_server_with_room_refuses_nobody(late: str) -> None:
    """Even where it never makes the deadline."""
    kinds = [Kind("docs", 0.5, (8000, 12_000), (20, 50), slo_s=0.1)]
    ran = play(kinds, 2, 60, late=late)
    assert len(ran.outcomes) > 15
    assert all(outcome.answered_at is not None for outcome in ran.outcomes)


def test_only_what_had_begun_to_be_shown_is_lost_when_callers_leave_and_replicas_die() -> None:
    lives = engines(3)
    devices = (
        replace(lives[0], dies_at=4.0),
        replace(lives[1], hangs_at=9.5, hang_limit_s=1.0),
        lives[2],
        replace(lives[0], replica_id="r3", joins_at=6.0),
    )
    kinds = [replace(CHAT, rate=40), replace(LONG, rate=2), Kind("gone", 10, (50, 500), (50, 500))]
    ran = play(kinds, 1, 10, devices=devices, check=True, leaving={"gone": 0.5})
    assert all(outcome.answers + outcome.left == 1 for outcome in ran.outcomes)
    reasons = {outcome.reason for outcome in ran.outcomes if outcome.first_at is None}
    assert reasons <= {None, Reason.LATE}, "lost once, retried once"
    shown = [outcome for outcome in ran.outcomes if outcome.first_at is not None]
    interrupted = [outcome for outcome in shown if outcome.answered_at is None and not outcome.left]
    assert {outcome.reason for outcome in interrupted} == {Reason.INTERRUPTED}
    assert all(outcome.first_at < 10.5 for outcome in interrupted)  # when the last replica was lost
    end = ran.cores[0].snapshot(1e6)
    assert (end.waiting_rows, end.leases, end.leased_rows, end.drift) == (0, 0, 0, 0)
    assert all(each.held == 0 for each in end.replicas)


def test_promised_time_a_token_is_kept_by_taking_fewer_at_once() -> None:
    kinds = [Kind("chat", 40, (30, 100), (100, 300), slo_s=5.0)]
    free = play(kinds, 1, 20)
    kept = play(kinds, 1, 20, generation={"tpot_s": 0.015})
    assert free.token_s(0.5, "chat") > 0.016
    assert kept.token_s(0.9, "chat") < 0.0165
