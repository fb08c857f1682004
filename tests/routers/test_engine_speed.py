"""What a token is worth is learnt from full replicas, from others only that it is worth no more."""

from __future__ import annotations

from math import inf

import pytest

from routers.api.settings import GenerationParameters
from routers.estimates.engine_speed import EngineSpeed, LineFit

PROFILE = (*tuple((n, n, 0.01 + 0.001 * n) for n in (1, 8, 64)), (1, 2048, 0.2048))


def served(
    speed: EngineSpeed, rate: float, *, full: bool, seconds: int = 20, at: float = 0.0
) -> None:
    for n in range(10 * seconds):
        speed.worked("a", rate / 10.0, at + n / 10.0, full=full)


def test_full_replica_shows_what_a_token_takes() -> None:
    speed = EngineSpeed(GenerationParameters())
    served(speed, 500.0, full=True)
    assert speed.token_s == pytest.approx(1 / 500, rel=0.05)


def test_replica_with_little_to_do_is_not_taken_for_a_slow_one() -> None:
    speed = EngineSpeed(GenerationParameters())
    served(speed, 5000.0, full=True)
    served(speed, 50.0, full=False, at=100.0)
    assert speed.token_s == pytest.approx(1 / 5000, rel=0.1)


def test_replica_that_is_quicker_than_thought_is_believed_at_any_load() -> None:
    speed = EngineSpeed(GenerationParameters())
    served(speed, 5000.0, full=False)
    assert speed.token_s == pytest.approx(1 / 5000, rel=0.1)


def test_time_without_work_is_not_counted() -> None:
    speed = EngineSpeed(GenerationParameters())
    served(speed, 1000.0, full=True)
    speed.idle("a")
    served(speed, 1000.0, full=True, at=1000.0)
    assert speed.token_s == pytest.approx(1 / 1000, rel=0.05)


def test_profile_says_what_to_start_from() -> None:
    speed = EngineSpeed(GenerationParameters(profile=PROFILE))
    assert speed.prompt_s == pytest.approx(1e-4)
    assert speed.token_s == pytest.approx(((0.074 / 64) / 2 + 1e-4) / 2)


def test_other_profile_is_another_engine() -> None:
    speed = EngineSpeed(GenerationParameters())
    served(speed, 5000.0, full=True)
    speed.adopt(GenerationParameters(profile=PROFILE))
    assert speed.prompt_s == pytest.approx(1e-4)
    assert speed.samples == 0


def test_reading_is_told_from_what_every_first_token_takes() -> None:
    speed = EngineSpeed(GenerationParameters())
    for n in range(60):
        tokens = 100.0 * (1 + n % 20)
        speed.began(tokens, 0.05 + 0.0002 * tokens)
    assert speed.prompt_s == pytest.approx(0.0002, rel=0.01)


@pytest.mark.parametrize(("tpot_s", "most"), [(0.020, 10), (0.0105, 1), (0.001, 1), (inf, inf)])
def test_promised_time_a_token_bounds_the_sequences(tpot_s: float, most: float) -> None:
    points = tuple((n, n, 0.010 + 0.001 * n) for n in (1, 2, 4, 8, 16, 32, 64, 128))
    speed = EngineSpeed(GenerationParameters(tpot_s=tpot_s, profile=points))
    assert speed.max_leases == pytest.approx(most)


def test_fixed_values_are_not_learnt() -> None:
    speed = EngineSpeed(GenerationParameters(tokens_per_s=100.0, prompt_tokens_per_s=1000.0))
    served(speed, 5000.0, full=True)
    speed.began(100.0, 7.0)
    assert (speed.token_s, speed.prompt_s) == (0.01, 0.001)


def test_frozen_paces_stay() -> None:
    speed = EngineSpeed(GenerationParameters())
    speed.frozen = True
    before = speed.token_s, speed.prompt_s
    served(speed, 5000.0, full=True)
    for n in range(60):
        speed.began(100.0 * n, 5.0 * n)
    assert (speed.token_s, speed.prompt_s) == before


def test_slope_is_kept_while_points_lie_close_together_and_the_base_follows() -> None:
    line = LineFit()
    for n in range(1, 20):
        line.learn(float(n), 2.0 * n)
    for _ in range(500):
        line.learn(10.0, 50.0)
    assert line.is_known
    assert line.slope * 10.0 + line.base == pytest.approx(50.0, rel=1e-3)


def test_line_is_not_believed_before_its_points_lie_apart() -> None:
    line = LineFit(first=2.0)
    for _ in range(50):
        line.learn(10.0, 100.0)
    assert (line.slope, line.is_known) == (2.0, False)
    assert line.base == pytest.approx(80.0)


def test_what_a_replica_gave_to_all_gateways_counts_where_it_says_so() -> None:
    speed = EngineSpeed(GenerationParameters())
    for second in range(12):
        speed.worked("a", 100.0, float(second), full=True, given=1000.0 + 400.0 * second)
        speed.worked("a", 100.0, float(second), full=False)  # an end, which does not say
    assert speed.token_s == pytest.approx(1 / 400, rel=0.02)


def test_counts_that_fall_are_no_work() -> None:
    speed = EngineSpeed(GenerationParameters())
    for second, given in enumerate((1000.0, 400.0, 900.0, 1400.0)):
        speed.worked("a", 0.0, float(second), full=True, given=given)
    assert 1 / 500 <= speed.token_s <= 1 / 250
