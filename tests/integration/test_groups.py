"""A model of two groups on a real cluster: one queue, a deployment each, a change of one alone."""

from __future__ import annotations

from typing import Any

import pytest
from served import Server, metric, synthetic

pytestmark = pytest.mark.integration
HEALTHY = "headrace_group_healthy_replicas"


def model(**spare: Any) -> dict[str, Any]:
    groups = [
        {"name": "fast", "options": {"base_ms": 2}, "lengths": {"max": 8}},
        {"name": "spare", "options": {"base_ms": 40}} | spare,
    ]
    return synthetic(replicas={"groups": groups}, lengths={"max": 64})


SHARED = {"pair": model()}


@pytest.fixture(scope="module")
def server(shared) -> Server:
    made: Server = shared
    return made


def healthy(server: Server, group: str) -> float:
    """0.0 while no gateway has heard of the group."""
    own = [line for line in server.metrics().splitlines() if f'group="{group}"' in line]
    if not any(line.startswith(HEALTHY) for line in own):
        return 0.0
    return metric("\n".join(own), HEALTHY, model="pair", group=group)


def test_replicas_of_both_groups_join_one_queue_and_the_faster_answers(server):
    server.until(lambda: healthy(server, "fast") == healthy(server, "spare") == 1, 60)
    answers = [server.infer("pair", [1, 2]) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200] * 5
    assert all(float(answer.headers["x-service-time-ms"]) < 40 for answer in answers)


def test_rows_that_are_too_long_for_the_faster_group_are_answered_by_the_other(server):
    long, short = server.infer("pair", [1] * 9), server.infer("pair", [1] * 8)
    assert (long.status_code, short.status_code) == (200, 200)
    assert (
        float(long.headers["x-service-time-ms"]) >= 40 > float(short.headers["x-service-time-ms"])
    )
    assert server.infer("pair", [1] * 65).status_code == 400


def test_more_replicas_of_one_group_join_while_the_others_answer(server):
    file = server.write("more.yaml", {**server.models, "pair": model(count=2)})
    assert server.headrace("apply", str(file)).returncode == 0
    server.until(lambda: healthy(server, "spare") == 2, 60)
    assert healthy(server, "fast") == 1
    assert server.infer("pair", [1, 2]).status_code == 200
