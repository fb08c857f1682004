"""Each weakness is found where it is planted, and nowhere in the chart's own value sets (which
`verdict.complaints` looks at)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kube.chart import Object, cluster_of
from tests.kube.hardening import weaknesses
from tests.kube.pods import pods

Plant = Callable[[Object], None]
NAME = "RayService/demo cpu"


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


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (a_token, "CKV_K8S_38"),
        (a_user_of_the_node, "CKV_K8S_40"),
        (no_limit, "CKV_K8S_12"),
        (no_request, "CKV_K8S_10"),
        (the_latest, "CKV_K8S_14"),
        (a_root_to_write, "CKV_K8S_22"),
    ],
)
def test_a_planted_weakness_is_found(plain_objects: list[Object], plant: Plant, check: str):
    template = cluster_of(plain_objects)["workerGroupSpecs"][1]["template"]
    assert list(weaknesses(NAME, template)) == []
    plant(template)
    (said,) = weaknesses(NAME, template)
    assert check in said


def test_the_head_alone_may_have_a_token(plain_objects: list[Object]):
    templates = dict(pair for each in plain_objects for pair in pods(each))
    trusted = [n for n, t in templates.items() if "automountServiceAccountToken" not in t["spec"]]
    assert trusted == ["RayService/demo-headrace head"]
    assert list(weaknesses(trusted[0], templates[trusted[0]])) == []
