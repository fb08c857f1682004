"""Asks every node of a Ray cluster what it is like: a job's command, run on the head node.

One small actor a node, bound to it and taking no CPU; nodes are asked at once, and one that does
not answer in time is said to, with the others' facts. Clocks are compared with the head's by the
shortest of a few questions, half of whose way is the error.
Usage: `python -m deployments.cluster.node_survey QUESTION` (JSON of `node_facts.Question`); prints
one line, marked, with JSON of all nodes.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from dataclasses import asdict
from typing import Any

from deployments.cluster.node_facts import NodeFacts, Question, collected

MARK = "headrace-nodes:"
_ANSWER_S = 60.0
_CLOCK_ANSWER_S = 10.0
_CLOCK_QUESTIONS = 5
_HEAD = "node:__internal_head__"


class Surveyor:
    """On the node it asks about."""

    def facts(self, question: Question) -> dict[str, Any]:
        return collected(question, os.environ)

    def clock(self) -> float:
        """Seconds since the epoch."""
        return time.time()


def survey(question: Question) -> list[NodeFacts]:
    """Of every node that is alive. Ray is initialised."""
    import ray

    nodes: Any = ray.nodes
    alive = [node for node in nodes() if node["Alive"]]
    asked = [(node, _ask(node["NodeID"], question)) for node in alive]
    end = time.monotonic() + _ANSWER_S
    return [_answered(node, asking, end - time.monotonic()) for node, asking in asked]


def _ask(node_id: str, question: Question) -> tuple[Any, Any]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    remote: Any = ray.remote
    actor = remote(num_cpus=0, scheduling_strategy=there)(Surveyor).remote()
    return actor, actor.facts.remote(question)


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
        return NodeFacts(name, address, head, error=_first_line(error))
    return NodeFacts(
        name, address, head, **facts, clock_ahead_s=ahead_s, clock_error_s=error_s
    )  # fmt: skip


def _clock(actor: Any) -> tuple[float, float]:
    """How far the node's clock is ahead of ours, and the most that may be wrong by, seconds."""
    import ray

    asked = []
    for _ in range(_CLOCK_QUESTIONS):
        began, at = time.perf_counter(), time.time()
        there = ray.get(actor.clock.remote(), timeout=_CLOCK_ANSWER_S)
        half_s = (time.perf_counter() - began) / 2
        asked.append((half_s, there - at - half_s))
    error_s, ahead_s = min(asked)
    return ahead_s, error_s


def _first_line(error: Exception) -> str:
    """The last line of a remote traceback says what it was."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return (lines[-1].strip() if lines else type(error).__name__)[:300]


def main() -> None:
    import ray

    question = Question.of(json.loads(sys.argv[1]))
    ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
    print(MARK + json.dumps([asdict(each) for each in survey(question)]), flush=True)


def read(output: str) -> list[NodeFacts] | None:
    """The nodes that a run of this command printed; None where it printed none."""
    for line in output.splitlines():
        if line.startswith(MARK):
            return [NodeFacts.of(each) for each in json.loads(line.removeprefix(MARK))]
    return None


if __name__ == "__main__":
    main()
