"""Does the simulated queue obey what closed loops must: so many clients, so many rows in all?"""

from __future__ import annotations

from random import Random

import pytest

from deployments.tools.profile.queue_depth import Service, depth
from routers.api.settings import DispatcherSettings

# One batch of at most four rows takes 10 ms, whatever is in it.
CORE = DispatcherSettings((64,), max_size=4, slo_s=1.0, profile=((1, 64, 0.01), (4, 64, 0.01)))
SERVICE = Service(CORE, lambda rows, width: 0.01, 1, 1, 10.0)


def test_a_full_device_serves_what_it_can_and_the_others_wait() -> None:
    found = depth(SERVICE, 20, [64], Random(0))
    assert found.answered_per_s == pytest.approx(400, rel=0.02)
    assert found.rows == pytest.approx(16, rel=0.05)  # 20 less the four that run
    assert found.wait_p50_s == pytest.approx(0.04, rel=0.05)
    assert found.in_time == 1.0
    assert found.batch_rows == pytest.approx(4, rel=0.01)
    assert found.max_rows <= 20


def test_few_clients_wait_for_the_batch_that_runs() -> None:
    found = depth(SERVICE, 1, [64], Random(0))
    assert (found.rows, found.wait_p99_s, found.batch_rows) == (0.0, 0.0, 1.0)
    assert found.answered_per_s == pytest.approx(100)


def test_a_second_replica_halves_the_wait() -> None:
    two = Service(CORE, lambda rows, width: 0.01, 2, 1, 10.0)
    assert depth(two, 20, [64], Random(0)).answered_per_s == pytest.approx(800, rel=0.02)


def test_refused_clients_come_again_and_it_ends() -> None:
    core = DispatcherSettings((64,), max_size=4, slo_s=0.02, max_slo_share=1.0, max_queue_rows=4,
                              late="refuse",
                              profile=((1, 64, 0.01), (4, 64, 0.01)))  # fmt: skip
    found = depth(Service(core, lambda rows, width: 0.01, 1, 1, 0.05), 50, [64], Random(0))
    assert found.max_rows <= 4
    assert 200 < found.answered_per_s <= 400 * 1.02
    assert 0.1 < found.in_time < 0.9


def test_many_more_than_a_device_can_serve_still_have_a_depth() -> None:
    core = DispatcherSettings((64,), max_size=4, slo_s=0.5, profile=((1, 64, 0.1), (4, 64, 0.1)))
    found = depth(Service(core, lambda rows, width: 0.1, 1, 2, 1.0), 200, [64], Random(0))
    assert 38 < found.answered_per_s <= 42
    assert found.rows > 10


def test_a_device_of_microseconds_is_simulated_for_as_many_answers_and_no_more() -> None:
    asked: list[int] = []

    def seconds(rows: int, width: int) -> float:
        asked.append(rows)
        return 1e-5

    fast = Service(CORE, seconds, 1, 1, 10.0)
    found = depth(fast, 20, [64], Random(0))
    assert found.answered_per_s == pytest.approx(400_000, rel=0.05)
    assert len(asked) < 100_000
