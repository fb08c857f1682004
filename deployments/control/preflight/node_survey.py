"""Asks every node of a Ray cluster for its facts. Run as a job on the head node.

It starts one small actor on each node, which takes no CPU, and asks all nodes at once. A node that
does not answer in time is reported as such, beside the others' facts. A node's clock is compared
with the head's by the fastest of a few questions; half of its round trip is the error.
Usage: `python -m deployments.control.preflight.node_survey QUERY` (JSON of
`node_facts.NodeQuery`). Prints one line with a mark and JSON of all nodes.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from dataclasses import asdict
from typing import Any

from deployments.control.preflight.node_facts import NodeFacts, NodeQuery, collected

MARK = "headrace-nodes:"
_ANSWER_S = 60.0
_CLOCK_ANSWER_S = 10.0
_CLOCK_QUESTIONS = 5
_HEAD = "node:__internal_head__"


class Surveyor:
    """Runs on the node that it asks about."""

    def facts(self, query: NodeQuery) -> dict[str, Any]:
        return collected(query, os.environ)

    def clock(self) -> float:
        """Seconds since the epoch."""
        return time.time()


def survey(query: NodeQuery) -> list[NodeFacts]:
    """The facts of every living node. Needs an initialised Ray."""
    import ray

    nodes: Any = ray.nodes
    alive = [node for node in nodes() if node["Alive"]]
    asked = [(node, _ask(node["NodeID"], query)) for node in alive]
    end = time.monotonic() + _ANSWER_S
    return [_answered(node, asking, end - time.monotonic()) for node, asking in asked]


def _ask(node_id: str, query: NodeQuery) -> tuple[Any, Any]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    remote: Any = ray.remote
    actor = remote(num_cpus=0, scheduling_strategy=there)(Surveyor).remote()
    return actor, actor.facts.remote(query)


def _answered(node: dict[str, Any], asking: tuple[Any, Any], limit_s: float) -> NodeFacts:
    import ray

    name, address = node["NodeID"], node["NodeManagerAddress"]
    head, (actor, answer) = _HEAD in node["Resources"], asking
    try:
        facts = ray.get(answer, timeout=max(limit_s, 0.1))
        ahead_s, error_s = _clock(actor)
    except ray.exceptions.GetTimeoutError:
        return NodeFacts(name, address, head, error=f"did not answer within {_ANSWER_S:g} s")
    except ray.exceptions.RayError as error:
        return NodeFacts(name, address, head, error=last_line(error))
    return NodeFacts(
        name, address, head, **facts, clock_ahead_s=ahead_s, clock_error_s=error_s
    )  # fmt: skip


def _clock(actor: Any) -> tuple[float, float]:
    """How far the node's clock is ahead of this one, and the largest possible error, in seconds."""
    import ray

    asked = []
    for _ in range(_CLOCK_QUESTIONS):
        began, at = time.perf_counter(), time.time()
        there = ray.get(actor.clock.remote(), timeout=_CLOCK_ANSWER_S)
        half_s = (time.perf_counter() - began) / 2
        asked.append((half_s, there - at - half_s))
    error_s, ahead_s = min(asked)
    return ahead_s, error_s


def last_line(error: Exception) -> str:
    """The last line of a remote traceback, which names the exception."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1][:300]


def main() -> None:
    import ray

    query = NodeQuery.of(json.loads(sys.argv[1]))
    ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
    print(MARK + json.dumps([asdict(each) for each in survey(query)]), flush=True)


def read(output: str) -> list[NodeFacts] | None:
    """The nodes in the output of this command; None if it printed none."""
    for line in output.splitlines():
        if line.startswith(MARK):
            return [NodeFacts.of(each) for each in json.loads(line.removeprefix(MARK))]
    return None


if __name__ == "__main__":
    main()
