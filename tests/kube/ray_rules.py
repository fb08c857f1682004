"""What Ray itself makes of a RayService: its Serve config by Ray Serve's own schema, its groups by
the autoscaler's own derivation, and the environment of its pods beside what Headrace needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from deployments.control.ray_env import variables
from deployments.control.serve_config import in_cluster
from deployments.settings.gateway import GatewaySettings
from tests.kube.chart import LOADER, Object

_DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"


def serve_complaints(service: Object) -> Iterator[str]:
    """What Serve refuses, and what it would drop without a word: names that it does not know."""
    from pydantic import ValidationError
    from ray.serve.schema import DeploymentSchema, ServeApplicationSchema, ServeDeploySchema

    config = yaml.load(service["spec"]["serveConfigV2"], LOADER)
    try:
        ServeDeploySchema.model_validate(config)
    except ValidationError as error:
        yield f"serveConfigV2: {error}"
    places = [("serveConfigV2", config, ServeDeploySchema)]
    for application in config["applications"]:
        places.append((application["name"], application, ServeApplicationSchema))
        places += [
            (f"{application['name']}/{each['name']}", each, DeploymentSchema)
            for each in application.get("deployments", ())
        ]
    for name, written, schema in places:
        for unknown in written.keys() - schema.model_fields.keys():
            yield f"serveConfigV2: {name} has {unknown}, which Serve does not know"


def node_types(cluster: Object) -> dict[str, Any]:
    """What Ray's autoscaler knows of each group, by name."""
    from ray.autoscaler._private.kuberay import autoscaling_config

    custom_resource = {"metadata": {"name": "c", "namespace": "n"}, "spec": cluster}
    derive = autoscaling_config._derive_autoscaling_config_from_ray_cr
    found: dict[str, Any] = derive(custom_resource)["available_node_types"]
    return found


def claimed(objects: Sequence[Object]) -> dict[str, int]:
    """Devices of a claim, by its template."""
    return {
        each["metadata"]["name"]: sum(
            request["exactly"]["count"] for request in each["spec"]["spec"]["devices"]["requests"]
        )
        for each in objects
        if each["kind"] == "ResourceClaimTemplate"
    }


def resource_complaints(cluster: Object, claims: Mapping[str, int]) -> Iterator[str]:
    """A pod has the devices that Ray counts there, and a MIG profile has its resource. What models
    take would leave gateways no room on their own pods, whichever comes first. `claims`: as
    `claimed`."""
    known = node_types(cluster)
    for group in cluster["workerGroupSpecs"]:
        name, limits = group["groupName"], _ray_container(group)["resources"]["limits"]
        devices = {k: int(v) for k, v in limits.items() if k.startswith("nvidia.com/")}
        for claim in group["template"]["spec"].get("resourceClaims", ()):
            template = claim["resourceClaimTemplateName"]
            devices[template] = claims.get(template, 0)
        counted = known[name]["resources"]
        if counted.get("GPU", 0) != sum(devices.values()):
            yield f"{name} has {devices}, and Ray counts {counted.get('GPU', 0)} GPUs"
        if group["rayStartParams"].get("num-gpus") != str(sum(devices.values())):
            yield f"{name} must say num-gpus itself"
        if counted["CPU"] > int(limits["cpu"]):
            yield f"{name} has {limits['cpu']} CPUs, and Ray counts {counted['CPU']}"
        for device in devices:
            profile = device.removeprefix("nvidia.com/mig-")
            resource = "mig_" + profile.replace(".", "_")
            if profile != device and (len(devices) > 1 or devices[device] != 1):
                yield f"{name} must have one MIG device alone"
            if profile != device and counted.get(resource) != 1:
                yield f"{name} must have the custom resource {resource}"
    for name in ("headgroup", "gateways"):
        if known[name]["resources"].get("CPU") or known[name]["resources"].get("GPU"):
            yield f"{name} must have no CPU and no GPU for work"


# Nothing breaks where a user sets them otherwise: models of the hub need `HF_HUB_OFFLINE` 0.
_FREE = {
    "HF_HUB_OFFLINE", "OPENVINO_TELEMETRY_OPT_OUT", "RAY_USAGE_STATS_ENABLED",
    "RAY_worker_niceness", "TOKENIZERS_PARALLELISM",
}  # fmt: skip


def environment_complaints(
    cluster: Object, gateway: GatewaySettings, program: Path, given: Mapping[str, str]
) -> Iterator[str]:
    """Each pod has all of the Serve environment before Ray starts, but what processes take up while
    they run: a change of that shall start no cluster. `program`: what stands in HAProxy's place in
    the image. `given`: what the values' `env` says."""
    told = {name: value for name, value in given.items() if name in _FREE}
    wanted: dict[str, str | None] = {
        each.name: None if each.is_dynamic else each.value
        for each in variables(in_cluster(gateway), program)
    }
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        name = group.get("groupName", "head")
        there = {each["name"]: each.get("value") for each in _ray_container(group)["env"]}
        for variable, value in (wanted | told).items():
            if there.get(variable) != value:
                yield f"{name}: {variable} is {there.get(variable)!r}, must be {value!r}"


def drain_complaints(service: Object) -> Iterator[str]:
    """Replicas have time to finish, and pods to drain, before they are killed."""
    config = yaml.load(service["spec"]["serveConfigV2"], LOADER)
    slowest = max(
        deployment.get("graceful_shutdown_timeout_s", 0)
        for application in config["applications"]
        for deployment in application.get("deployments", ())
    )
    cluster = service["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        name, spec = group.get("groupName", "head"), group["template"]["spec"]
        container = spec["containers"][0]
        drain_s = next((float(e["value"]) for e in container["env"] if e["name"] == _DRAIN), 30)
        if drain_s < slowest + 15:
            yield f"{name} drains {drain_s:g} s; a replica may take {slowest:g} s"
        if spec.get("terminationGracePeriodSeconds", 30) < drain_s + 30:
            yield f"{name} is killed before it has drained {drain_s:g} s"
        if "preStop" in json.dumps(container.get("lifecycle", {})):
            yield f"{name} has a preStop, which would end replicas before they drain"


def _ray_container(group: Object) -> Object:
    container: Object = group["template"]["spec"]["containers"][0]
    return container
