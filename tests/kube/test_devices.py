"""What a group of MIG pods asks Kubernetes for, and what Ray's own autoscaler makes of it."""

from __future__ import annotations

import json

import pytest

from autoscaling.mig.geometry import GPUS
from deployments.tools.plan.manifests import GKE_ACCELERATORS, Workers
from tests.kube.chart import Object, cluster_of, objects, serve_config_of
from tests.kube.ray_rules import node_types

MODEL = {"device": {"runtime": "synthetic"}}
CPU = {"name": "cpu", "cpu": 4, "memory": "4Gi"}
PROFILE = "device.attributes['gpu.nvidia.com'].profile == '1g.10gb+me'"


@pytest.mark.parametrize(
    ("profile", "device", "resource"),
    [
        ("1g.18gb", "nvidia.com/mig-1g.18gb", "mig_1g_18gb"),
        ("3g.40gb", "nvidia.com/mig-3g.40gb", "mig_3g_40gb"),
        ("1g.10gb+me", "nvidia.com/mig-1g.10gb.me", "mig_1g_10gb_me"),
    ],
)
def test_a_mig_pod_has_one_device_which_ray_counts(
    profile: str, device: str, resource: str
) -> None:
    mig = {"name": "mig", "cpu": 2, "memory": "12Gi", "maxReplicas": 7, "migProfile": profile}
    cluster = cluster_of(objects({"models": MODEL, "workerGroups": [CPU, mig]}))
    (container,) = cluster["workerGroupSpecs"][2]["template"]["spec"]["containers"]
    assert container["resources"]["limits"][device] == "1"
    assert container["resources"]["requests"] == container["resources"]["limits"]
    known = node_types(cluster)["mig"]
    assert (known["min_workers"], known["max_workers"]) == (0, 7)
    assert known["resources"] == {"CPU": 2, "GPU": 1, "memory": 12 << 30, resource: 1}
    assert "CUDA_VISIBLE_DEVICES" not in {each["name"] for each in container["env"]}


def test_a_plan_of_mig_slices_and_the_chart_name_them_alike() -> None:
    profiles = [each for gpu in GPUS.values() for each in gpu.profiles]
    groups = [
        Workers("h100-80", each, 0, 1, 2, 8).values() | {"name": f"p{position}"}
        for position, each in enumerate(profiles)
    ]
    specs = cluster_of(objects({"models": MODEL, "workerGroups": [CPU, *groups]}))
    for profile, group in zip(profiles, specs["workerGroupSpecs"][2:], strict=True):
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        assert limits[f"nvidia.com/{profile.resource}"] == "1"
        assert group["rayStartParams"]["num-gpus"] == "1"
        told = json.loads(json.loads(group["rayStartParams"]["resources"].strip("'")))
        assert told == {profile.ray_resource: 1}


PRODUCTS = ["NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"]
AFFINITY = {
    "nodeSelectorTerms": [
        {
            "matchExpressions": [
                {"key": "nvidia.com/gpu.product", "operator": "In", "values": PRODUCTS}
            ]
        }
    ]
}


def test_a_planned_slice_of_a_mixed_fleet_goes_to_its_gpus_alone() -> None:
    a100 = Workers("a100-80", GPUS["a100-80"].profiles[0], 1, 2, 2, 8, "gpu_a100_80").values()
    h100 = Workers("h100-94", GPUS["h100-94"].profiles[0], 1, 2, 2, 8, "gpu_h100_94").values()
    cluster = cluster_of(objects({"models": MODEL, "workerGroups": [CPU, a100, h100]}))
    first, second = (each["template"]["spec"] for each in cluster["workerGroupSpecs"][2:])
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    assert first["affinity"]["nodeAffinity"][required] == AFFINITY
    assert second["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-NVL"}
    known = node_types(cluster)["mig-1g-10gb-a100-80"]["resources"]
    assert (known["GPU"], known["mig_1g_10gb"], known["gpu_a100_80"]) == (1, 1, 1)


@pytest.mark.parametrize("gpu", GKE_ACCELERATORS)
def test_a_planned_slice_of_gke_is_a_gpu_of_a_partitioned_node(gpu: str) -> None:
    profile = GPUS[gpu].profiles[0]
    group = Workers(gpu, profile, 1, 2, 2, 8, devices="gke").values()
    cluster = cluster_of(objects({"models": MODEL, "workerGroups": [CPU, group]}))
    spec = cluster["workerGroupSpecs"][2]["template"]["spec"]
    limits = spec["containers"][0]["resources"]["limits"]
    assert {key: n for key, n in limits.items() if "nvidia" in key} == {"nvidia.com/gpu": "1"}
    assert spec["nodeSelector"] == {
        "cloud.google.com/gke-accelerator": GKE_ACCELERATORS[gpu],
        "cloud.google.com/gke-gpu-partition-size": profile.name,
    }
    known = node_types(cluster)[f"mig-{profile.name.replace('.', '-')}"]["resources"]
    assert (known["GPU"], known[profile.ray_resource]) == (1, 1)


def test_whole_gpus_labels_priority_and_idle_time_reach_the_autoscaler() -> None:
    gpus = CPU | {
        "name": "gpus", "gpus": 4, "labels": {"ray.io/accelerator-type": "H100"}, "priority": 3,
        "idleTimeoutSeconds": 60, "resources": {"licence": 2},
    }  # fmt: skip
    known = node_types(cluster_of(objects({"models": MODEL, "workerGroups": [gpus]})))["gpus"]
    assert known["resources"] == {"CPU": 4, "GPU": 4, "memory": 4 << 30, "licence": 2}
    assert known["labels"] == {"ray.io/accelerator-type": "H100"}
    assert (known["priority"], known["idle_timeout_s"]) == (3, 60.0)


def test_gateways_find_the_nodes_made_for_them_and_models_none_there() -> None:
    found = objects(
        {
            "models": MODEL,
            "workerGroups": [CPU],
            "gateway": {"replicas": 5, "replicas_per_node": 2},
        }
    )
    known = node_types(cluster_of(found))["gateways"]
    assert (known["min_workers"], known["max_workers"]) == (3, 3)
    assert known["labels"] == {"headrace.io/role": "gateway"}
    assert known["resources"]["CPU"] == 0
    gateway, _, model = serve_config_of(found)["applications"]
    asked = [each["deployments"][0]["ray_actor_options"]["num_cpus"] for each in (gateway, model)]
    assert asked == [0, 0.5]


@pytest.mark.parametrize(
    ("device", "claimed", "name"),
    [
        (
            {"migProfile": "1g.10gb+me"},
            {
                "deviceClassName": "mig.nvidia.com",
                "count": 1,
                "selectors": [{"cel": {"expression": PROFILE}}],
            },
            "demo-headrace-claims-1g-10gb-me",
        ),
        (
            {"gpus": 2},
            {"deviceClassName": "gpu.nvidia.com", "count": 2},
            "demo-headrace-claims-gpus-2",
        ),
    ],
)
def test_a_pod_may_claim_its_device_which_ray_counts_all_the_same(
    device: dict[str, object], claimed: dict[str, object], name: str
) -> None:
    group = {"name": "claims", "cpu": 2, "memory": "12Gi", **device}
    plugin, claims = (
        objects({"models": MODEL, "workerGroups": [CPU, group | {"devices": each}]})
        for each in ("plugin", "dra")
    )
    (template,) = [each for each in claims if each["kind"] == "ResourceClaimTemplate"]
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == claimed | {"allocationMode": "ExactCount"}
    assert template["metadata"]["name"] == name
    spec = cluster_of(claims)["workerGroupSpecs"][2]["template"]["spec"]
    assert spec["resourceClaims"] == [{"name": "device", "resourceClaimTemplateName": name}]
    assert spec["containers"][0]["resources"]["limits"].keys() == {"cpu", "memory"}
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "device"}]
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert node_types(cluster_of(claims)) == node_types(cluster_of(plugin))


def test_without_claims_no_template_is_made(plain_objects: list[Object]) -> None:
    assert "ResourceClaimTemplate" not in {each["kind"] for each in plain_objects}
