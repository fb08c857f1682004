"""What a gateway reports of its rollouts: one step's counts, begun anew with the next."""

from __future__ import annotations

from pathlib import Path

from rolling_out import CANARY, LIVE, counts, post, rolling_out, seen

from deployments.contract.rollout.observations import Observations, seconds_of


async def test_counts_are_of_one_step(tmp_path: Path) -> None:
    async with rolling_out(tmp_path) as stand:
        for _ in range(3):
            await post(stand)
        assert counts(stand) == ((0, 0), (3, 0))
        stand.route(LIVE)  # the registry says the same again
        await post(stand)
        assert counts(stand) == ((0, 0), (4, 0))
        stand.route(LIVE, 0.0)  # and is promoting, in the same step
        await post(stand)
        assert counts(stand) == ((1, 0), (4, 0))
        stand.route(LIVE, step=1)
        assert seen(stand) == Observations(1, 1, reached=1)
        await post(stand)
        assert counts(stand) == ((0, 0), (1, 0))


async def test_a_request_of_an_earlier_step_counts_in_that(tmp_path: Path) -> None:
    async with rolling_out(tmp_path) as stand:
        assignment = stand.app.rollouts.assignment(LIVE, None)
        assert assignment is not None
        stand.route(LIVE, step=1)
        assert seen(stand).step == 1
        assignment.answered(1)
        assert counts(stand) == ((0, 0), (0, 0))


async def test_latencies_are_by_the_length_of_the_longest_row(tmp_path: Path) -> None:
    async with rolling_out(tmp_path) as stand:
        await post(stand, 1, 2, 3)
        (length,) = seen(stand).canary.latencies
        assert length == 1  # whose rows have no length
        (step,) = seen(stand).canary.latencies[length]
        assert 0 < seconds_of(step) < 1.0


async def test_replicas_that_are_reached_are_reported_without_a_request(tmp_path: Path) -> None:
    async with rolling_out(tmp_path, replicas=2) as stand:
        assert seen(stand).reached == 2
        stand.channels[CANARY].lose(f"{CANARY}-0")
        assert seen(stand).reached == 1
        stand.remove(CANARY)
        assert seen(stand).reached == 0


async def test_a_model_without_a_rollout_reports_nothing(tmp_path: Path) -> None:
    async with rolling_out(tmp_path) as stand:
        stand.models.routes = {}
        assert stand.app.rollouts.assignment(LIVE, None) is None
        assert stand.app.rollouts.report() == []
