"""What does the autoscaler cost Serve's controller, with many models?

`python -m tests.deployments.benches.scaling_controller [--models 50] [--seconds 30]`. A Ray of its
own with so many applications of one deployment each, between 0 and 4 replicas, none of which run:
what is measured is the controller's loop, not what runs. Prints the durations of its last turns as
Serve itself measures them: with Serve's own policy, with the autoscaler's numbers copied, and with
these while a number changes by hand each second, so that a replica starts or ends all the time;
then also how long such a change takes to reach Serve's target. Promise: no turn of 100 ms or more
on average, at the median and at the 95th percentile.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import ray
from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.schema import ServeDeploySchema

from autoscaling.settings import GroupTerms, ModelTerms, PolicySettings, ScalingSettings
from deployments.contract.app_names import directory_key, model_app, model_deployment
from deployments.contract.scaling.document import ScalingDocument
from deployments.control.scaling import store
from deployments.control.serve_config import COPY_TARGETS, bounds
from deployments.process.actors import running_autoscaler

MAX_S = 0.1
_SETTLES_S = 20.0  # deploying is not what is measured
_ME = "tests.deployments.benches.scaling_controller"


class Idle:
    """A replica that does nothing."""


def idle(args: dict[str, Any]) -> Any:
    deployment: Any = serve.deployment(
        Idle, name=model_deployment(), ray_actor_options={"num_cpus": 0}
    )
    return deployment.bind()


def names(models: int) -> list[str]:
    return [f"m{number}" for number in range(models)]


def deploy(models: int, policy: dict[str, Any]) -> None:
    """Returns when all applications run."""
    applications = [
        {
            "name": model_app(name), "route_prefix": None, "import_path": f"{_ME}:idle",
            "deployments": [{"name": model_deployment(), "autoscaling_config": bounds(0, 4)}],
            **policy,
        }
        for name in names(models)
    ]  # fmt: skip
    client = serve.context._get_global_client()
    client.deploy_apps(ServeDeploySchema.model_validate({"applications": applications}))
    while any(app.status != "RUNNING" for app in serve.status().applications.values()):
        time.sleep(0.5)


def turns() -> dict[str, float]:
    """Seconds of the controller's last turns."""
    controller = serve.context._get_global_client()._controller
    found: dict[str, float] = ray.get(controller.get_health_metrics.remote())["loop_duration_s"]
    return found


def target(name: str) -> int:
    application = serve.status().applications[model_app(name)]
    return sum(application.deployments[model_deployment()].replica_states.values())


def measured(asked: argparse.Namespace, what: str, meanwhile: Callable[[float], None]) -> bool:
    """Whether the promise is kept."""
    time.sleep(_SETTLES_S)
    meanwhile(asked.seconds)
    found = turns()
    print(f"{asked.models} models, {what}: " + ", ".join(
        f"{name} {seconds * 1000:.1f} ms" for name, seconds in found.items() if seconds
    ), flush=True)  # fmt: skip
    return all(seconds < MAX_S for name, seconds in found.items() if name != "max")


def changed(seconds: float) -> None:
    """Sets a number by hand each second; prints how long each took to show in what runs."""
    actor, took = running_autoscaler(), []
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        number = 1 - number
        began = time.monotonic()
        complaint = ray.get(actor.pin.remote("m0", "", number))
        assert not complaint, complaint
        while (target("m0") > 0) is not (number > 0):
            time.sleep(0.01)
        took.append(time.monotonic() - began)
        time.sleep(max(0.0, 1.0 - took[-1]))
    took.sort()
    print(f"{directory_key('m0')}: by hand {len(took)} times; in force after "
          f"{took[len(took) // 2]:.2f} s (median), {took[-1]:.2f} s (longest)")  # fmt: skip


def publish(models: int) -> None:
    policy = PolicySettings()
    terms = {n: ModelTerms(n, 0.1, (GroupTerms("", 0, 4),), policy=policy) for n in names(models)}
    store.put(store.DOCUMENT, ScalingDocument(ScalingSettings(terms)).text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30.0)
    asked = parser.parse_args()
    ray.init(address="local", num_cpus=1000, include_dashboard=False, log_to_driver=False)
    serve.start(proxy_location="Disabled", http_options=HTTPOptions())
    publish(asked.models)
    # Of whom nothing is known one replica would be started.
    ray.get([running_autoscaler().described.remote(name, True) for name in names(asked.models)])
    deploy(asked.models, {})
    kept = measured(asked, "Serve's own policy", time.sleep)
    deploy(asked.models, {"autoscaling_policy": {"policy_function": COPY_TARGETS}})
    kept &= measured(asked, "the autoscaler's numbers", time.sleep)
    kept &= measured(asked, "the autoscaler's numbers, one changing each second", changed)
    serve.shutdown()
    ray.shutdown()
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
