"""Shares of generation hold across gateways, however skewed the ingress: each tenant comes to one
of them. What gateways hear of each other is what a real replica tells them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from routers.api.actions import Action
from routers.api.events import Closed, Event, Heard, Opened, PeersServed, Progress
from routers.api.requests import Generation, LeaseEnd
from routers.api.settings import DispatcherSettings
from routers.api.snapshot import Snapshot
from routers.shared.staging import REPORT_EVERY_S
from routers.simulation.simulator import Arrival, World, run
from routers.simulation.traffic import SimOutcome, SimRecorder
from routers.stream.scheduler import StreamScheduler
from runtimes.synthetic.engine import EngineShape
from tests.simulation.generation_load import engines, settings

# As the engine of tests/integration/test_two_gateways.py: four sequences, 30 ms a step.
FOUR = EngineShape(0.030, 0.0, 0.00005, cache_tokens=4000, max_sequences=4)
PROMPT, WORDS = 20, 8
SETTLE_S, END_S = 4.0, 40.0
ONE_AT_ONCE = replace(FOUR, max_sequences=1)


def asked(
    tenant: int, at: float, words: int = WORDS, *, gateway: int = 0, weight: float = 1.0
) -> Arrival:
    return Arrival(
        at,
        (PROMPT,),
        60.0,
        600.0,
        tenant=str(tenant),
        weight=weight,
        gateway=gateway,
        generation=Generation(words),
        output=words,
    )


def written(weights: tuple[float, ...], words: tuple[int, ...], gateways: int) -> list[float]:
    """Shares of answered requests' weighted tokens, by tenant. Tenant `n` comes to gateway `n`, if
    there are as many, with four times as many callers as the engine runs, who ask again at once."""

    def ask(tenant: int, at: float) -> Arrival:
        gateway, weight = tenant % gateways, weights[tenant]
        return asked(tenant, at, words[tenant], gateway=gateway, weight=weight)

    def again(outcome: SimOutcome, now: float) -> Arrival | None:
        return ask(int(outcome.arrival.tenant), now + 0.002) if now < END_S else None

    recorder, given = SimRecorder(), Counter[int]()
    first = [ask(tenant, 0.0) for _ in range(16) for tenant in range(len(weights))]
    world = World(engines(1, FOUR), gateways=gateways, follow=again)
    run(settings(FOUR), first, world, recorder)
    for outcome in recorder.outcomes:
        if outcome.answered_at is not None and SETTLE_S <= outcome.answered_at < END_S:
            given[int(outcome.arrival.tenant)] += PROMPT + 2 * outcome.tokens.output
    return [given[tenant] / given.total() for tenant in range(len(weights))]


@pytest.mark.parametrize("gateways", [1, 2])
@pytest.mark.parametrize("words", [(WORDS, WORDS), (WORDS, 4 * WORDS)])
def test_what_is_written_is_as_the_weights_wherever_each_tenant_comes_in(
    words: tuple[int, ...], gateways: int
) -> None:
    heavy, light = written((4.0, 1.0), words, gateways)
    assert heavy / light == pytest.approx(4.0, rel=0.05)


def test_three_gateways_share_an_engine_by_weight() -> None:
    shares = written((4.0, 1.0, 1.0), (WORDS,) * 3, 3)
    assert shares == pytest.approx([2 / 3, 1 / 6, 1 / 6], rel=0.05)


class Told:
    """A core that remembers what it was told."""

    def __init__(self, of: DispatcherSettings) -> None:
        self._core = StreamScheduler(of)
        self.told: list[tuple[float, Event]] = []

    def step(self, event: Event, now: float) -> list[Action]:
        self.told.append((now, event))
        return self._core.step(event, now)

    def snapshot(self, now: float) -> Snapshot:
        return self._core.snapshot(now)

    def heard(self, kind: type[Any]) -> list[tuple[float, Any]]:
        return [(at, event) for at, event in self.told if isinstance(event, kind)]


@dataclass
class Gateways:
    """Two of them beside one engine. `cores`: theirs."""

    engine: EngineShape = ONE_AT_ONCE
    cores: list[Told] = field(default_factory=list)

    def play(self, *arrivals: Arrival) -> list[SimOutcome]:
        def core(of: DispatcherSettings) -> Told:
            self.cores.append(Told(of))
            return self.cores[-1]

        recorder = SimRecorder()
        world = World(engines(1, self.engine), gateways=2, core=core)
        run(settings(self.engine), arrivals, world, recorder)
        return recorder.outcomes


def test_one_that_waits_for_its_turn_at_the_replica_begins_when_another_has_ended() -> None:
    gateways = Gateways()
    first, second = gateways.play(asked(0, 0.0), asked(1, 0.001, gateway=1))
    ((began_at, _),) = gateways.cores[1].heard(Opened)
    assert first.answered_at == pytest.approx(began_at)
    assert second.answered_at == pytest.approx(2 * first.answered_at, rel=0.1)


def test_the_end_of_a_request_tells_what_others_were_charged_and_when_it_is() -> None:
    gateways = Gateways()
    gateways.play(asked(0, 0.0), asked(1, 0.001, gateway=1), asked(1, 0.002, gateway=1))
    ((_, first),) = gateways.cores[0].heard(Closed)
    ((priority, tenant, seconds),) = first.report.served
    assert (priority, tenant) == (0, "1")
    assert seconds > 0.0
    assert first.report.virtual_time == (0.0,)
    (_, second), (_, third) = gateways.cores[1].heard(Closed)
    assert second.report.virtual_time == (0.0,)
    assert third.report.virtual_time[0] > 0.0


def test_what_waits_at_other_gateways_is_known_in_between() -> None:
    """It is told every 50 ms at most; two requests end in one step."""
    gateways = Gateways(replace(FOUR, max_sequences=3))
    many = [asked(1, 0.001, 4, gateway=1) for _ in range(30)]
    gateways.play(asked(0, 0.0, 40), asked(0, 0.0, 40), *many)
    first, second = [event.report for _, event in gateways.cores[0].heard(Closed)]
    assert [each[:2] for each in first.waiting] == [(0, "1")]
    assert second.waiting == first.waiting


def test_gateways_hear_of_others_while_their_own_requests_go_on() -> None:
    gateways = Gateways(FOUR)
    short = [asked(1, 0.5 + n / 4, gateway=1) for n in range(8)]
    gateways.play(asked(0, 0.0, 100), *short)
    core = gateways.cores[0]
    ((ended_at, _),) = core.heard(Closed)
    times = [at for at, _ in core.heard(PeersServed)]
    assert len(times) >= 8
    assert all(at < ended_at for at in times)
    assert min(later - at for at, later in pairwise(times)) >= 0.99 * REPORT_EVERY_S
    news = [work for _, event in core.heard(PeersServed) for work in event.report.served]
    (own,) = gateways.cores[1].snapshot(ended_at).flows
    assert sum(seconds for _, _, seconds in news) == pytest.approx(own.served_s, rel=0.05)


def test_a_gateway_alone_hears_of_nobody() -> None:
    gateways = Gateways(FOUR)
    gateways.play(*[asked(0, n / 10) for n in range(40)])
    core = gateways.cores[0]
    assert not core.heard(PeersServed)
    assert not core.heard(Heard)
    assert all(event.report.served == event.report.waiting == () for _, event in core.heard(Closed))


def test_a_gateway_whose_requests_all_wait_hears_that_the_replica_lives() -> None:
    gateways = Gateways()
    gateways.play(asked(0, 0.0, 100), asked(1, 0.1, gateway=1))
    times = [at for at, _ in gateways.cores[1].heard(Heard)]
    assert times[:2] == pytest.approx([1.1, 2.1], abs=0.05)


def test_what_was_served_last_is_told_when_nothing_runs_any_more() -> None:
    gateways = Gateways(FOUR)
    gateways.play(asked(0, 0.0, 2), asked(1, 1.0, gateway=1))
    core = gateways.cores[0]
    ((_, own),) = core.heard(Closed)
    assert own.report.served == ()
    ((at, news),) = core.heard(PeersServed)
    assert news.report.served[0][:2] == (0, "1")
    assert at < 3.0


def test_progress_says_what_the_replica_gave_to_all() -> None:
    gateways = Gateways(FOUR)
    gateways.play(asked(0, 0.0, 40), asked(1, 0.0, 40, gateway=1))
    for core in gateways.cores:
        last = core.heard(Progress)[-1][1]
        assert (last.given.input, last.given.cached) == (2 * PROMPT, 0)
        assert last.given.output >= 2 * last.tokens.output - 1


def test_one_whose_caller_leaves_while_it_waits_is_never_begun() -> None:
    gateways = Gateways()
    leaves, stays = asked(1, 0.001, gateway=1), asked(1, 0.002, gateway=1)
    leaves.leaves_at = 0.1
    gateways.play(asked(0, 0.0), leaves, stays)
    core = gateways.cores[1]
    assert len(core.heard(Opened)) == 1
    ends = [(event.end, event.report.service_s) for _, event in core.heard(Closed)]
    assert ends[0] == (LeaseEnd.ABORTED, 0.0)
    assert ends[1][0] is LeaseEnd.DONE
