"""What KubeRay makes of a RayService, against what it made of one elsewhere, and of the chart's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kube.chart import Object, Values, objects, ray_service
from tests.kube.operator_pods import (
    NotWrittenAnew,
    head_pod,
    quantity,
    ray_start,
    serve_service,
    worker_pods,
)

CLUSTER = "demo-headrace-abcde"
HEAD = f"{CLUSTER}-head-svc.serving.svc.cluster.local"
MIG = '--resources="{\\"mig_1g_18gb\\":1}"'


def env(container: Object) -> dict[str, Any]:
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in container["env"]}


@pytest.fixture
def service(plain: Values) -> Object:
    return ray_service(objects(plain))


@pytest.fixture
def head(service: Object) -> Object:
    container: Object = head_pod(service, CLUSTER)["spec"]["containers"][0]
    return container


@pytest.fixture
def gateways(service: Object) -> Object:
    pod: Object = worker_pods(service, CLUSTER)[0]
    return pod


def test_a_line_is_the_one_that_kuberay_wrote_for_such_a_head() -> None:
    """Of a head pod of KubeRay 1.5.1 in an issue's report; spaces between flags are fewer."""
    params = {"dashboard-host": "0.0.0.0", "metrics-export-port": "8080", "block": "true"}
    line = ray_start(
        "head", params | {"dashboard-agent-listen-port": "52365"}, {"cpu": "1", "memory": "2G"}
    )
    assert line == (
        "ray start --head --block --dashboard-agent-listen-port=52365 --dashboard-host=0.0.0.0 "
        "--memory=2000000000 --metrics-export-port=8080 --num-cpus=1"
    )


def test_the_heads_line_has_no_processors_and_all_else_that_kuberay_adds(head: Object) -> None:
    (words,) = head["args"]
    limit, _, line = words.partition("; ")
    assert limit == "ulimit -n ${RAY_START_ULIMIT_OPEN_FILES:-65536}"
    assert line.split() == [
        "ray", "start", "--head", "--block", "--dashboard-agent-listen-port=52365",
        "--dashboard-host=0.0.0.0", f"--memory={8 * 2**30}", "--metrics-export-port=8080",
        "--no-monitor", "--num-cpus=0", "--num-gpus=0", f"--object-store-memory={512 * 2**20}",
    ]  # fmt: skip
    assert env(head)["KUBERAY_GEN_RAY_START_CMD"] == line


def test_the_heads_logs_lie_where_the_autoscaler_reads_them(head: Object) -> None:
    assert {"name": "ray-logs", "mountPath": "/tmp/ray"} in head["volumeMounts"]


def test_a_gateways_line_has_its_label_and_the_heads_name(gateways: Object) -> None:
    (words,) = gateways["spec"]["containers"][0]["args"]
    assert f" --address={HEAD}:6379 " in words
    assert " --labels=headrace.io/role=gateway " in words
    assert " --num-cpus=0 " in words


def test_a_mig_groups_resource_survives_the_shell(plain: Values) -> None:
    groups = [plain["workerGroups"][1] | {"minReplicas": 1}]
    pods = worker_pods(ray_service(objects(plain | {"workerGroups": groups})), CLUSTER)
    assert MIG in pods[-1]["spec"]["containers"][0]["args"][0]


def test_the_pods_own_environment_stays_and_kuberays_is_added(head: Object) -> None:
    found = env(head)
    assert found["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
    assert found["RAY_ADDRESS"] == "127.0.0.1:6379"
    assert found["RAY_SERVE_KV_TIMEOUT_S"] == "5"
    assert found["RAY_AUTH_TOKEN"] == {"secretKeyRef": {"name": CLUSTER, "key": "auth_token"}}
    assert len(found) == len(head["env"]), "a variable is there twice"


def test_a_worker_waits_for_the_head_with_its_environment(gateways: Object) -> None:
    (waiting,) = gateways["spec"]["initContainers"]
    assert f"--address {HEAD}:6379" in waiting["args"][0]
    assert env(waiting)["RAY_AUTH_MODE"] == "token"
    assert env(gateways["spec"]["containers"][0])["RAY_IP"] == f"{CLUSTER}-head-svc"


def test_a_worker_is_ready_when_serves_ingress_answers_and_the_head_when_ray_does(
    head: Object, gateways: Object
) -> None:
    (container,) = gateways["spec"]["containers"]
    asked = container["readinessProbe"]["exec"]["command"][-1]
    assert "http://localhost:8000/-/healthz | grep success" in asked
    assert container["readinessProbe"]["failureThreshold"] == 1
    assert head["readinessProbe"]["httpGet"] == {"path": "api/healthz", "port": 52365}


def test_only_workers_are_the_services_and_there_are_as_many_as_groups_begin_with(
    service: Object,
) -> None:
    groups = [p["metadata"]["labels"]["ray.io/group"] for p in worker_pods(service, CLUSTER)]
    assert groups == ["gateways", "cpu"]
    assert head_pod(service, CLUSTER)["metadata"]["labels"]["ray.io/serve"] == "false"
    assert serve_service(service) == "demo-headrace-serve-svc"


def test_what_is_not_repeated_here_is_refused(plain: Values) -> None:
    redis = plain | {"faultTolerance": {"redisAddress": "redis:6379"}}
    with pytest.raises(NotWrittenAnew, match="gcsFaultToleranceOptions"):
        head_pod(ray_service(objects(redis)), CLUSTER)


@pytest.mark.parametrize(
    ("written", "number"), [("500m", 0.5), ("2", 2), ("4Gi", 4 * 2**30), ("2G", 2e9), (3, 3)]
)
def test_quantities_are_read_as_kubernetes_reads_them(written: str | int, number: float) -> None:
    assert quantity(written) == number
