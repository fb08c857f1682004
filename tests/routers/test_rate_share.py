"""Gateways that share a rate: all of it wherever it is asked for, never more than is stated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from routers.policies.admission.rates import NEWS_S, SILENT_S, Rate, RateShare, RateUse

WHOLE = Rate(100.0, 50.0)
TICK_S = 0.01
Ingress = Callable[[int, float], float]
"""Requests a second that come to a gateway at a time."""


@dataclass
class Service:
    """Gateways on virtual time. Each tells what it has passed once a second, in turn, and hears
    what the others said last, as from the registry."""

    count: int
    whole: Rate = WHOLE
    passed: list[float] = field(default_factory=list)
    offered: float = 0.0

    def run(self, ingress: Ingress, seconds: float) -> None:
        gateways = [RateShare.equal(self.whole, self.count, 0.0) for _ in range(self.count)]
        said: dict[str, RateUse] = {}
        owed = [0.0] * self.count
        tell_at = [(n + 1) / self.count for n in range(self.count)]
        for step in range(int(seconds / TICK_S)):
            now, passed = step * TICK_S, 0.0
            for n, gateway in enumerate(gateways):
                owed[n] += ingress(n, now) * TICK_S
                while owed[n] >= 1.0:
                    owed[n] -= 1.0
                    self.offered += 1.0
                    gateway.asks(1.0, now)
                    if gateway.wait_s(1.0, now) == 0.0:
                        gateway.take(1.0, now)
                        passed += 1.0
                if now >= tell_at[n]:
                    tell_at[n] += 1.0
                    said[str(n)] = gateway.use(now)
                    others = {k: use for k, use in said.items() if k != str(n)}
                    gateway.on_report(others, self.count, now)
            self.passed.append(passed)

    def most(self, seconds: float) -> float:
        """Over any such stretch of time."""
        ticks, sums = int(seconds / TICK_S), [0.0]
        for each in self.passed:
            sums.append(sums[-1] + each)
        return max(b - a for a, b in zip(sums, sums[ticks:], strict=False))

    def stated(self, seconds: float) -> float:
        rate, burst = self.whole.per_s, self.whole.burst
        news = self.count * rate * NEWS_S if self.count > 1 else 0.0
        return burst + rate * seconds + (self.count - 1) * burst + news

    def between(self, begin: float, end: float) -> float:
        """Passed a second."""
        return sum(self.passed[int(begin / TICK_S) : int(end / TICK_S)]) / (end - begin)


def all_to_one(n: int, now: float) -> float:
    return 300.0 if n == 0 else 0.0


def evenly(n: int, now: float) -> float:
    return 80.0


def skewed(n: int, now: float) -> float:
    return 270.0 if n == 0 else 30.0


def shifting(n: int, now: float) -> float:
    """All of it comes to another gateway every 5 s."""
    return 200.0 if int(now / 5.0) % 5 == n or (n == 0 and int(now / 5.0) % 5 > 1) else 0.0


def pulsing(n: int, now: float) -> float:
    """Everywhere at once, after a rest."""
    return 300.0 if now % 10.0 < 4.0 else 0.0


INGRESS = (all_to_one, evenly, skewed, shifting, pulsing)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("ingress", INGRESS)
def test_never_more_than_stated_over_any_stretch(count: int, ingress: Ingress) -> None:
    service = Service(count)
    service.run(ingress, 40.0)
    for seconds in (0.5, 1.0, 3.0, 10.0, 30.0):
        assert service.most(seconds) <= service.stated(seconds) + count


@pytest.mark.parametrize("count", [1, 2, 5])
def test_one_gateway_that_sees_all_of_a_tenant_passes_the_whole_rate(count: int) -> None:
    service = Service(count)
    service.run(all_to_one, 30.0)
    assert service.between(5.0, 30.0) == pytest.approx(100.0, rel=0.02)


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("ingress", [evenly, skewed])
def test_where_all_are_asked_the_rate_is_passed_in_all(count: int, ingress: Ingress) -> None:
    service = Service(count)
    service.run(ingress, 40.0)
    assert service.between(10.0, 40.0) == pytest.approx(100.0, rel=0.03)


@pytest.mark.parametrize("count", [2, 5])
def test_what_shifts_from_gateway_to_gateway_is_passed(count: int) -> None:
    service = Service(count)
    service.run(shifting, 50.0)
    assert 85.0 <= service.between(5.0, 50.0) <= 110.0


def test_a_rate_that_is_not_used_up_refuses_nobody() -> None:
    service = Service(5)
    service.run(lambda n, now: (60.0, 20.0, 5.0, 5.0, 0.0)[n], 30.0)
    assert service.between(5.0, 30.0) == pytest.approx(90.0, abs=0.2)
    assert sum(service.passed) >= 0.998 * service.offered  # an equal part until there was news


def test_each_gateways_part_is_as_its_demand() -> None:
    a, b = (RateShare.equal(WHOLE, 2, 0.0) for _ in range(2))
    for share, demand in ((a, 300.0), (b, 100.0)):
        for step in range(300):
            share.asks(demand / 100.0, step / 100.0)
    use_a, use_b = a.use(3.0), b.use(3.0)
    a.on_report({"b": use_b}, 2, 3.0)
    b.on_report({"a": use_a}, 2, 3.0)
    assert a.bucket.rate.per_s == pytest.approx(75.0, rel=0.02)
    assert b.bucket.rate.per_s == pytest.approx(25.0, rel=0.02)


def test_without_news_everybody_keeps_an_equal_part() -> None:
    share = RateShare.equal(WHOLE, 4, 0.0)
    assert share.bucket.rate.per_s == 25.0
    share.on_report({str(n): RateUse(0.0, 0.0) for n in range(3)}, 4, 1.0)
    assert share.bucket.rate.per_s == 100.0
    share.wait_s(1.0, 1.0 + SILENT_S)
    assert share.bucket.rate.per_s == 100.0
    share.wait_s(1.0, 1.1 + SILENT_S)
    assert share.bucket.rate.per_s == 25.0


def test_a_gateway_that_nothing_is_heard_of_is_left_an_equal_part() -> None:
    share = RateShare.equal(WHOLE, 4, 0.0)
    share.on_report({"a": RateUse(0.0, 0.0)}, 4, 1.0)
    assert share.bucket.rate.per_s == 50.0


def test_what_others_pass_counts_against_the_whole_rate() -> None:
    share = RateShare.equal(WHOLE, 2, 0.0)
    share.on_report({"a": RateUse(0.0, 10.0)}, 2, 1.0)
    share.on_report({"a": RateUse(0.0, 1010.0)}, 2, 2.0)
    assert share.wait_s(1.0, 2.0) == pytest.approx((1000.0 - 50.0 - 200.0 + 1.0) / 100.0, abs=0.01)
    assert share.wait_s(1.0, 2.0 + 7.6) == 0.0


def test_where_all_are_asked_for_more_it_passes_evenly_in_time() -> None:
    service = Service(5)
    service.run(evenly, 40.0)
    seconds = [service.between(begin, begin + 1.0) for begin in range(10, 40)]
    assert min(seconds) >= 70.0
    assert max(seconds) <= 130.0


def test_one_that_says_nothing_for_a_while_is_not_charged_for_its_past() -> None:
    share = RateShare.equal(WHOLE, 2, 0.0)
    for now, passed in ((1.0, 500.0), (2.0, 0.0), (3.0, 510.0)):
        share.on_report({"a": RateUse(0.0, passed)}, 2, now)
    assert share.ledger.level(3.0) == pytest.approx(share.ledger.rate.burst - 10.0)


def test_another_rate_begins_with_an_equal_part() -> None:
    share = RateShare.equal(WHOLE, 2, 0.0)
    share.on_report({"a": RateUse(0.0, 0.0)}, 2, 1.0)
    share.change(Rate(10.0, 5.0), 2.0)
    assert share.bucket.rate == Rate(5.0, 5.0)
