"""What users lay over the chart's pods: volumes, certificates, sidecars, placement, resources."""

from __future__ import annotations

import copy

import pytest

from deployments.tools.chart import values_schema
from tests.kube import built_ins
from tests.kube.chart import CHART, Object, Values, cluster_of, objects
from tests.kube.pods import as_pod, insecurities, pods
from tests.kube.test_planted_faults import of_kind

SIDECAR = {
    "name": "agent",
    "image": "agent:1",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
CA = {"name": "ca", "mountPath": "/etc/ssl/private-ca", "readOnly": True}
OVER_ALL = {
    "metadata": {"annotations": {"a.example/b": "c"}, "labels": {"kueue.x-k8s.io/priority": "p"}},
    "spec": {
        "schedulerName": "mine",
        "volumes": [{"name": "ca", "configMap": {"name": "private-ca"}}],
        "containers": [
            {
                "name": "ray",
                "env": [
                    {"name": "SSL_CERT_FILE", "value": "/etc/ssl/private-ca/ca.crt"},
                    {"name": "TOKENIZERS_PARALLELISM", "value": "true"},
                ],
                "envFrom": [{"secretRef": {"name": "proxies"}}],
                "volumeMounts": [CA],
            },
            SIDECAR,
        ],
        "initContainers": [SIDECAR | {"name": "first"}],
    },
}
OVER_GROUP = {
    "spec": {
        "containers": [{"name": "ray", "resources": {"requests": {"cpu": "1", "memory": "2Gi"}}}],
        "topologySpreadConstraints": [
            {"topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"},
            {"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 2,
             "whenUnsatisfiable": "ScheduleAnyway"},
        ],
        "volumes": [{"name": "tmp", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}],
    }
}  # fmt: skip
JOBS = {"metadata": {"annotations": {"sidecar.istio.io/inject": "false"}}}


@pytest.fixture
def laid_over(plain: Values) -> list[Object]:
    groups = copy.deepcopy(plain["workerGroups"])
    groups[0]["podTemplate"] = OVER_GROUP
    head = {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "podTemplate": {"spec": {"priorityClassName": "first"}},
    }
    more = {"podTemplate": OVER_ALL, "jobs": {"podTemplate": JOBS}, "head": head}
    return objects(plain | more | {"workerGroups": groups})


def ray_pods(found: list[Object]) -> dict[str, Object]:
    cluster = cluster_of(found)
    named = {g["groupName"]: g["template"] for g in cluster["workerGroupSpecs"]}
    return {"head": cluster["headGroupSpec"]["template"], **named}


def test_all_ray_pods_get_what_is_laid_over_all(laid_over: list[Object]) -> None:
    for name, pod in ray_pods(laid_over).items():
        ray, agent = pod["spec"]["containers"]
        assert (ray["name"], agent) == ("ray", SIDECAR), name
        assert pod["spec"]["initContainers"] == [SIDECAR | {"name": "first"}]
        assert pod["metadata"]["annotations"] == {"a.example/b": "c"}
        assert pod["metadata"]["labels"]["headrace.io/node"] == "ray"
        assert pod["metadata"]["labels"]["kueue.x-k8s.io/priority"] == "p"
        assert pod["spec"]["schedulerName"] == "mine"
        assert ray["volumeMounts"][-1] == CA
        assert ray["envFrom"] == [{"secretRef": {"name": "proxies"}}]
        names = [each["name"] for each in ray["env"]]
        assert len(names) == len(set(names)), "a variable is there twice"
        values = {each["name"]: each["value"] for each in ray["env"]}
        assert values["TOKENIZERS_PARALLELISM"] == "true"
        assert values["SSL_CERT_FILE"] == "/etc/ssl/private-ca/ca.crt"
        assert values["HOME"] == "/tmp"
        assert list(built_ins.complaints(as_pod(pod))) == []
        assert list(insecurities(pod)) == []


def test_a_group_gets_its_own_after_that(laid_over: list[Object]) -> None:
    found = ray_pods(laid_over)
    spec = found["cpu"]["spec"]
    assert spec["containers"][0]["resources"] == {
        "requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "4", "memory": "4Gi"},
    }  # fmt: skip
    by_node, by_zone = spec["topologySpreadConstraints"]
    assert (by_node["whenUnsatisfiable"], by_node["maxSkew"]) == ("DoNotSchedule", 1)
    assert by_zone["topologyKey"] == "topology.kubernetes.io/zone"
    (tmp,) = [each for each in spec["volumes"] if each["name"] == "tmp"]
    assert tmp.keys() == {"name", "ephemeral"}, "a volume is of one kind"
    assert found["mig"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "2"
    assert found["head"]["spec"]["priorityClassName"] == "first"
    assert "priorityClassName" not in spec


def test_the_check_and_the_test_stand_where_the_head_may(laid_over: list[Object]) -> None:
    job = of_kind(laid_over, "Job")["spec"]["template"]
    for pod in (job, of_kind(laid_over, "Pod")):
        assert pod["spec"]["nodeSelector"] == {"pool": "system"}
        assert pod["spec"]["tolerations"] == [{"key": "system", "operator": "Exists"}]
    assert job["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}


def test_the_test_has_what_is_laid_over_jobs_beside_its_own(laid_over: list[Object]) -> None:
    """A sidecar's injection for instance, with which its pod would never end."""
    metadata = of_kind(laid_over, "Pod")["metadata"]
    assert metadata["annotations"] == JOBS["metadata"]["annotations"] | {
        "helm.sh/hook": "test",
        "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
    }
    assert metadata["labels"]["app.kubernetes.io/component"] == "test"
    assert metadata["name"] == "demo-headrace-predict"


def test_without_an_autoscaler_a_head_has_whatever_account(plain: Values) -> None:
    groups = [each | {"minReplicas": 1} for each in plain["workerGroups"]]
    over = {"head": {"podTemplate": {"spec": {"serviceAccountName": "mine"}}}}
    values = plain | over | {"autoscaler": {"enabled": False}, "workerGroups": groups}
    assert ray_pods(objects(values))["head"]["spec"]["serviceAccountName"] == "mine"


def test_a_queue_holds_up_the_cluster_and_no_job(plain: Values) -> None:
    """Kueue suspends what has its label; an upgrade waits for its jobs."""
    label = "kueue.x-k8s.io/queue-name"
    storage = {"storage": {"type": "pvc", "pvc": {"from": "s3://models/"}}}
    found = objects(plain | storage | {"commonLabels": {label: "serving", "team": "search"}})
    queued = {each["kind"] for each in found if label in each["metadata"]["labels"]}
    assert "RayService" in queued
    jobs = [each for each in found if each["kind"] in ("Job", "Pod")]
    assert len(jobs) == 4
    for each in jobs:
        labels = each["metadata"]["labels"]
        component = each["metadata"]["name"]
        assert (label in labels, labels.get("team")) == (False, "search"), component


def test_a_drain_may_have_more_time(plain: Values) -> None:
    over = {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 690}}}
    for pod in ray_pods(objects(plain | over)).values():
        assert pod["spec"]["terminationGracePeriodSeconds"] == 690


def test_a_cluster_may_choose_the_user(plain: Values) -> None:
    """OpenShift's restricted-v2 gives a namespace's own; nobody has it in /etc/passwd."""
    found = objects(plain | {"runAsUser": None})
    assert "runAsUser" not in str(found)
    assert "fsGroup'" not in str(found)
    for each in found:
        for name, pod in pods(each):
            assert list(insecurities(pod)) == [], name
            for container in pod["spec"]["containers"]:
                assert {"name": "HOME", "value": "/tmp"} in container["env"], name


def test_null_takes_away_what_the_chart_writes(plain: Values) -> None:
    over = {"spec": {"topologySpreadConstraints": None}}
    for pod in ray_pods(objects(plain | {"podTemplate": over})).values():
        assert "topologySpreadConstraints" not in pod["spec"]


def test_names_of_fields_are_those_of_kubernetes() -> None:
    definitions = values_schema((CHART / "values.yaml").read_text())["$defs"]
    pod = definitions["PodTemplate"]["properties"]["spec"]
    container = definitions["Containers"]["items"]
    variable = definitions["EnvVars"]["items"]
    of_affinity = definitions["Affinity"]["properties"]
    found = {
        "PodSpec": pod,
        "Container": container,
        "VolumeMount": container["properties"]["volumeMounts"]["items"],
        "ResourceRequirements": container["properties"]["resources"],
        "EnvVar": variable,
        "EnvVarSource": variable["properties"]["valueFrom"],
        "EnvFromSource": definitions["EnvFrom"]["items"],
        "Toleration": definitions["Tolerations"]["items"],
        "Affinity": definitions["Affinity"],
        "NodeAffinity": of_affinity["nodeAffinity"],
        "PodAffinity": of_affinity["podAffinity"],
    }
    for kind, schema in found.items():
        assert schema["properties"].keys() == _fields(kind), kind
        assert schema["additionalProperties"] is False


def _fields(kind: str) -> set[str]:
    return set(built_ins.definition("1.37", f"io.k8s.api.core.v1.{kind}")["properties"])
