"""Each weakness is found where it is planted, and nowhere in the chart's own value sets (which
`verdict.complaints` looks at)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kube.chart import Object, Values, cluster_of, objects
from tests.kube.hardening import asks_kubernetes, weaknesses
from tests.kube.pods import pods

Plant = Callable[[Object], None]


def first(template: Object) -> Object:
    container: Object = template["spec"]["containers"][0]
    return container


def a_token(template: Object) -> None:
    del template["spec"]["automountServiceAccountToken"]


def a_user_of_the_node(template: Object) -> None:
    template["spec"]["securityContext"]["runAsUser"] = 1000


def no_limit(template: Object) -> None:
    del first(template)["resources"]["limits"]["memory"]


def no_request(template: Object) -> None:
    del first(template)["resources"]["requests"]["cpu"]


def the_latest(template: Object) -> None:
    first(template)["image"] = "headrace:latest"


def a_root_to_write(template: Object) -> None:
    first(template)["securityContext"]["readOnlyRootFilesystem"] = False


PLANTED = [
    (a_token, "CKV_K8S_38"),
    (a_user_of_the_node, "CKV_K8S_40"),
    (no_limit, "CKV_K8S_12"),
    (no_request, "CKV_K8S_10"),
    (the_latest, "CKV_K8S_14"),
    (a_root_to_write, "CKV_K8S_22"),
]


@pytest.mark.parametrize(("plant", "check"), PLANTED)
def test_a_planted_weakness_is_found(plain_objects: list[Object], plant: Plant, check: str):
    template = cluster_of(plain_objects)["workerGroupSpecs"][1]["template"]
    assert list(weaknesses(template)) == []
    plant(template)
    (said,) = weaknesses(template)
    assert check in said


def with_token(made: list[Object]) -> list[str]:
    templates = dict(pair for each in made for pair in pods(each))
    return [n for n, t in templates.items() if "automountServiceAccountToken" not in t["spec"]]


def test_the_head_alone_may_have_a_token(plain_objects: list[Object]):
    assert with_token(plain_objects) == ["RayService/demo-headrace head"]
    cluster = cluster_of(plain_objects)
    head, *others = cluster["headGroupSpec"], *cluster["workerGroupSpecs"]
    assert asks_kubernetes(cluster, head["template"])
    assert list(weaknesses(head["template"], asks_kubernetes=True)) == []
    assert not any(asks_kubernetes(cluster, each["template"]) for each in others)


def test_a_head_without_an_autoscaler_has_no_token(plain: Values):
    groups = [group | {"minReplicas": 1} for group in plain["workerGroups"]]
    made = objects(plain | {"autoscaler": {"enabled": False}, "workerGroups": groups})
    assert with_token(made) == []
    head = cluster_of(made)["headGroupSpec"]["template"]
    assert head["spec"]["serviceAccountName"] == "demo-headrace"
    a_token(head)
    (said,) = weaknesses(head, asks_kubernetes=asks_kubernetes(cluster_of(made), head))
    assert "CKV_K8S_38" in said


def test_files_of_tenants_reach_gateways_alone() -> None:
    """They have hashes of keys, which pods that run models need not know."""
    values = {
        "gateway": {"tenants_path": "/etc/tenants"},
        "tenantFiles": {"existingSecrets": ["keys"]},
        "models": {"device": {"runtime": "synthetic"}},
        "workerGroups": [{"name": "cpu", "cpu": 1, "memory": "1Gi"}],
    }
    mounted = {
        where.rpartition(" ")[2]: [v["name"] for v in template["spec"].get("volumes", ())]
        for each in objects(values)
        for where, template in pods(each)
    }
    assert {where for where, volumes in mounted.items() if "tenants" in volumes} == {"gateways"}
    assert {"head", "cpu"} <= mounted.keys()
