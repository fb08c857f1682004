"""Sets a model's number of replicas by hand, from inside the cluster.

The autoscaler keeps the number, across its own restarts too, until it is told to decide again. On a
remote cluster this module is run as a job on the head node: `python -m
deployments.control.manual_target TARGET` (JSON of `ManualTarget`). It prints one line with a mark
and the JSON of the answer.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict, dataclass
from typing import Any

MARK = "headrace-target:"
_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class ManualTarget:
    """The number of replicas to set."""

    model: str
    group: str = ""  # "": of a model without groups
    replicas: int | None = None  # None: let the autoscaler decide


def set_target(target: ManualTarget) -> dict[str, Any]:
    """Set the number. Returns the target, or {"error": what is wrong}. Needs an initialised Ray."""
    import ray

    from deployments.process import actors

    try:
        asked = actors.running_autoscaler().pin.remote(target.model, target.group, target.replicas)
        complaint: str = ray.get(asked, timeout=_ANSWER_S)
    except (ValueError, ray.exceptions.RayError) as away:
        complaint = f"the autoscaler is away ({type(away).__name__}); try again in some seconds"
    return {"error": complaint} if complaint else asdict(target)


def main() -> None:
    import ray

    target = ManualTarget(**json.loads(sys.argv[1]))
    ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
    print(MARK + json.dumps(set_target(target)), flush=True)


def read(output: str) -> dict[str, Any] | None:
    """The answer in the output of this command; None if it printed none."""
    for line in output.splitlines():
        if line.startswith(MARK):
            answer: dict[str, Any] = json.loads(line.removeprefix(MARK))
            return answer
    return None


if __name__ == "__main__":
    main()
