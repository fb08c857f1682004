"""Faults planted in what the chart makes, or in its values: each is caught, by the layer named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kube.chart import SECTIONS, Object, Values, cluster_of, objects, ray_service
from tests.kube.crds import Crds
from tests.kube.verdict import complaints

Plant = Callable[[list[Object]], None]


def of_kind(found: list[Object], kind: str) -> Object:
    return next(each for each in found if each["kind"] == kind)


def pod(found: list[Object], group: int = 0) -> Object:
    template: Object = cluster_of(found)["workerGroupSpecs"][group]["template"]
    return template


def container(found: list[Object], group: int = 0) -> Object:
    first: Object = pod(found, group)["spec"]["containers"][0]
    return first


def an_environment_value_is_a_number(found: list[Object]) -> None:
    container(found)["env"][0]["value"] = 1


def a_field_of_the_service_is_misspelt(found: list[Object]) -> None:
    spec = ray_service(found)["spec"]
    spec["serveConfigV3"] = spec["serveConfigV2"]


def a_port_has_two_numbers(found: list[Object]) -> None:
    container(found)["ports"].append(dict(container(found)["ports"][0]))


def a_deployment_setting_is_misspelt(found: list[Object]) -> None:
    spec = ray_service(found)["spec"]
    spec["serveConfigV2"] = spec["serveConfigV2"].replace("num_replicas", "num_replica")


def a_mig_group_leaves_counting_to_ray(found: list[Object]) -> None:
    del cluster_of(found)["workerGroupSpecs"][2]["rayStartParams"]["num-gpus"]


def a_pod_has_two_mig_devices(found: list[Object]) -> None:
    for amounts in container(found, 2)["resources"].values():
        amounts["nvidia.com/mig-1g.18gb"] = "2"


def the_head_takes_work(found: list[Object]) -> None:
    cluster_of(found)["headGroupSpec"]["rayStartParams"]["num-cpus"] = "2"


def the_gateways_pods_take_work(found: list[Object]) -> None:
    cluster_of(found)["workerGroupSpecs"][0]["rayStartParams"]["num-cpus"] = "1"


def a_variable_is_left_out(found: list[Object]) -> None:
    container(found)["env"] = [
        each for each in container(found)["env"] if each["name"] != "RAY_worker_niceness"
    ]


def a_container_may_become_root(found: list[Object]) -> None:
    del container(found, 1)["securityContext"]["allowPrivilegeEscalation"]


def a_folder_of_the_host_is_mounted(found: list[Object]) -> None:
    pod(found)["spec"]["volumes"][0] = {"name": "tmp", "hostPath": {"path": "/tmp"}}


def a_pod_is_killed_while_it_drains(found: list[Object]) -> None:
    pod(found)["spec"]["terminationGracePeriodSeconds"] = 30


def replicas_are_stopped_before_they_drain(found: list[Object]) -> None:
    container(found)["lifecycle"] = {"preStop": {"exec": {"command": ["ray", "stop"]}}}


def a_name_is_too_long_for_kuberay(found: list[Object]) -> None:
    ray_service(found)["metadata"]["name"] = "h" * 48


def a_gated_feature_is_used(found: list[Object]) -> None:
    cluster_of(found)["networkPolicy"] = {"mode": "DenyAll"}


def a_version_stands_in_a_pod(found: list[Object]) -> None:
    pod(found)["metadata"]["labels"]["helm.sh/chart"] = "headrace-0.1.0"


def a_policy_selects_nobody(found: list[Object]) -> None:
    of_kind(found, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]["app"] = "headrace"


def a_monitor_asks_a_port_that_is_not_there(found: list[Object]) -> None:
    of_kind(found, "PodMonitor")["spec"]["podMetricsEndpoints"][0]["port"] = "metric"


def a_route_leads_to_another_service(found: list[Object]) -> None:
    rule = of_kind(found, "HTTPRoute")["spec"]["rules"][0]
    rule["backendRefs"][0]["name"] = "demo-headrace"


def a_budget_has_a_bound_that_cannot_be_worked_out(found: list[Object]) -> None:
    of_kind(found, "PodDisruptionBudget")["spec"]["minAvailabel"] = 1


def a_kind_is_unknown(found: list[Object]) -> None:
    of_kind(found, "ServiceAccount")["apiVersion"] = "v2"


def a_volume_is_not_declared(found: list[Object]) -> None:
    container(found)["volumeMounts"].append({"name": "models", "mountPath": "/models"})


def a_pod_claims_by_a_template_that_is_not_there(found: list[Object]) -> None:
    claim = {"name": "device", "resourceClaimTemplateName": "nowhere"}
    pod(found, 1)["spec"]["resourceClaims"] = [claim]
    container(found, 1)["resources"]["claims"] = [{"name": "device"}]


IN_BUILT_INS = [
    (an_environment_value_is_a_number, "schema: RayService/demo-headrace gateways: 1.31"),
    (a_budget_has_a_bound_that_cannot_be_worked_out, "minAvailabel"),
    (a_kind_is_unknown, "Kubernetes 1.31 has no v2 ServiceAccount"),
    (a_deployment_setting_is_misspelt, "serve: serveConfigV2: gateway/gateway has num_replica"),
    (a_mig_group_leaves_counting_to_ray, "resources: mig has"),
    (a_pod_has_two_mig_devices, "resources: mig must have one MIG device alone"),
    (the_head_takes_work, "resources: headgroup must have no CPU"),
    (the_gateways_pods_take_work, "resources: gateways must have no CPU"),
    (a_variable_is_left_out, "environment: gateways: RAY_worker_niceness is None"),
    (a_container_may_become_root, "security: RayService/demo-headrace cpu"),
    (a_folder_of_the_host_is_mounted, "volume tmp is a hostPath"),
    (a_pod_is_killed_while_it_drains, "drain: gateways is killed before"),
    (replicas_are_stopped_before_they_drain, "drain: gateways has a preStop"),
    (a_name_is_too_long_for_kuberay, "kuberay: name"),
    (a_gated_feature_is_used, "kuberay: networkPolicy is behind a feature gate"),
    (a_version_stands_in_a_pod, "would roll the cluster"),
    (a_policy_selects_nobody, "wiring: NetworkPolicy"),
    (a_monitor_asks_a_port_that_is_not_there, "asks port metric"),
    (a_route_leads_to_another_service, "wiring: HTTPRoute sends requests to demo-headrace"),
    (a_volume_is_not_declared, "volume models is mounted or declared"),
    (a_pod_claims_by_a_template_that_is_not_there, "claims by nowhere, which is not there"),
]
IN_CRDS = [
    (a_field_of_the_service_is_misspelt, "serveConfigV3"),
    (a_port_has_two_numbers, "stands there twice"),
    (an_environment_value_is_a_number, "is not of type 'string'"),
]


@pytest.mark.parametrize(
    ("plant", "said"), IN_BUILT_INS, ids=lambda each: getattr(each, "__name__", "")
)
def test_a_planted_fault_is_caught(
    plain: Values, plain_objects: list[Object], plant: Plant, said: str
) -> None:
    assert complaints(plain_objects, plain, None) == []
    plant(plain_objects)
    assert any(said in each for each in complaints(plain_objects, plain, None))


def test_a_free_variable_has_the_value_that_the_users_values_give_it(
    plain: Values, plain_objects: list[Object]
) -> None:
    online = {"env": [{"name": "HF_HUB_OFFLINE", "value": "0"}]}
    there = objects(plain | online)
    assert complaints(there, plain | online, None) == []
    assert all(
        "HF_HUB_OFFLINE is '0', must be '1'" in each for each in complaints(there, plain, None)
    )
    assert "HF_HUB_OFFLINE is '1', must be '0'" in str(
        complaints(plain_objects, online | plain, None)
    )


@pytest.mark.parametrize(("plant", "said"), IN_CRDS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_planted_fault_is_caught_by_a_crd(
    plain_objects: list[Object], real_crds: Crds, plant: Plant, said: str
) -> None:
    assert list(real_crds.complaints(ray_service(plain_objects))) == []
    plant(plain_objects)
    assert any(said in each for each in real_crds.complaints(ray_service(plain_objects)))


SLIPS: list[tuple[dict[str, Any], str]] = [
    ({"modelz": {}}, "additional properties 'modelz' not allowed"),
    ({"models": {"device": {"runtime": "synthetic", "batchh": {}}}}, "'batchh' not allowed"),
    ({"models": {"device": {"runtime": "cuda"}}}, "at '/models/device/runtime'"),
    (
        {"models": {"Device": {"runtime": "synthetic"}}},
        "at '/models': additional properties 'Device'",
    ),
    ({"models": {"device": {"runtime": "synthetic", "replicas": {"count": 0}}}}, "minimum"),
    ({"models": {"device": {"runtime": "synthetic", "slo": {"latency_ms": "9"}}}}, "want number"),
    ({"tenants": {"acme": {"wait": 1}}}, "'wait' not allowed"),
    ({"gateway": {"port": 0}}, "at '/gateway/port'"),
    ({"workerGroups": [{"name": "cpu", "cpu": 1}]}, "missing property 'memory'"),
    (
        {"workerGroups": [{"name": "g", "cpu": 1, "memory": "1Gi", "migProfile": "1g"}]},
        "migProfile",
    ),
    ({"head": {"memory": "8GB"}}, "at '/head/memory'"),
    ({"image": {"digest": "latest"}}, "at '/image/digest'"),
    ({"networkPolicy": {"callers": []}}, "at '/networkPolicy/callers'"),
    ({"networkPolicy": {"apiServer": []}}, "at '/networkPolicy/apiServer': minItems"),
    ({"networkPolicy": {"apiServer": [{}]}}, "at '/networkPolicy/apiServer/0': minProperties"),
    ({"image": {"repository": "registry:5000/headrace:1"}}, "at '/image/repository'"),
    ({"runAsUser": 1000}, "at '/runAsUser': minimum"),
    ({"runAsUser": 2147483648}, "at '/runAsUser': maximum"),
    (
        {"workerGroups": [{"name": "g", "cpu": 1, "memory": "1Gi", "resources": {"CPU": 9}}]},
        "at '/workerGroups/0/resources/CPU'",
    ),
    ({"env": [{"name": "A", "vaule": "1"}]}, "at '/env/0': additional properties 'vaule'"),
    (
        {"env": [{"name": "A", "valueFrom": {"secretRef": {}}}]},
        "at '/env/0/valueFrom': additional properties 'secretRef'",
    ),
    (
        {"envFrom": [{"secretref": {"name": "a"}}]},
        "at '/envFrom/0': additional properties 'secretref'",
    ),
    ({"head": {"tolerations": [{"key": "a", "efect": "NoSchedule"}]}}, "'efect' not allowed"),
    ({"head": {"tolerations": [{"operator": "Exist"}]}}, "at '/head/tolerations/0/operator'"),
    (
        {"podTemplate": {"spec": {"affinty": {}}}},
        "at '/podTemplate/spec': additional properties 'affinty'",
    ),
    (
        {"podTemplate": {"spec": {"affinity": {"podAfinity": {}}}}},
        "additional properties 'podAfinity'",
    ),
    (
        {"gateways": {"podTemplate": {"spec": {"containers": [{"name": "ray", "volumes": []}]}}}},
        "at '/gateways/podTemplate/spec/containers/0': additional properties 'volumes'",
    ),
    ({"gateways": {"rayLabels": {"zone": "a b"}}}, "at '/gateways/rayLabels/zone'"),
    ({"gateways": {"rayLabels": {"a zone": "a"}}}, "'a zone' not allowed"),
    ({"commonLabels": {"app.kubernetes.io/instance": "a"}}, "at '/commonLabels/app.kubernetes.io"),
    ({"commonLabels": {"helm.sh/chart": "a"}}, "at '/commonLabels/helm.sh"),
    *(
        ({name: None}, f"missing property '{name}'")
        for name in (*SECTIONS, "networkPolicy", "observability", "drainSeconds", "gateways")
    ),
    ({"gateways": {"rayLabels": None}}, "at '/gateways': missing property 'rayLabels'"),
    ({"networkPolicy": {"callers": None}}, "at '/networkPolicy': missing property 'callers'"),
    ({"observability": {"rules": None}}, "at '/observability': missing property 'rules'"),
]


@pytest.mark.parametrize(
    ("slip", "said"), SLIPS, ids=lambda each: each if isinstance(each, str) else ""
)
def test_a_slip_in_the_values_is_refused_with_its_place(
    plain: Values, slip: dict[str, Any], said: str
) -> None:
    import helm_python

    with pytest.raises(helm_python.HelmValuesError) as refused:
        objects(plain | slip)
    assert said in str(refused.value)
