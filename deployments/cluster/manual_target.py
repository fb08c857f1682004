"""Sets a model's number of replicas by hand, where the cluster runs.

The autoscaler keeps it, across its own death too, until it is told that the number is its own
again. On a cluster of somebody's this is a job's command, run on the head node: `python -m
deployments.cluster.manual_target TARGET` (JSON of `ManualTarget`); prints one line, marked, with
JSON of the answer.
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
    """group: "" of a model without. replicas: None: as the autoscaler decides."""

    model: str
    group: str = ""
    replicas: int | None = None


def set_target(target: ManualTarget) -> dict[str, Any]:
    """{"error": what is wrong} or the target. Ray is initialised."""
    import ray

    from deployments.contract.scaling import actor_name

    try:
        asked = actor_name.running().pin.remote(target.model, target.group, target.replicas)
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
    """The answer that a run of this command printed; None where it printed none."""
    for line in output.splitlines():
        if line.startswith(MARK):
            answer: dict[str, Any] = json.loads(line.removeprefix(MARK))
            return answer
    return None


if __name__ == "__main__":
    main()
