"""Which changes of the values start another cluster (twice the devices while it lasts), and which
are made in place. docs/kubernetes-changes.md is written from the same table."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.kube.changes import BEFORE, CHANGES, DEVICE, PAGE, Outcome, changed, outcome, page
from tests.kube.chart import Object, cluster_of, objects, serve_config_of
from tests.kube.kuberay import rolls

ROWS = [
    (what, change, each) for each, changes in CHANGES.items() for what, change in changes.items()
]


@pytest.fixture(scope="module")
def before() -> list[Object]:
    return objects(BEFORE)


@pytest.mark.parametrize(("what", "change", "said"), ROWS, ids=[row[0] for row in ROWS])
def test_an_upgrade_does_what_the_table_says(
    before: list[Object], what: str, change: dict[str, Any], said: Outcome
) -> None:
    after = objects(changed(change))
    assert after != before
    assert outcome(before, after) is said


def test_secrets_of_tenants_are_files_whole_and_one_need_not_be_there(before: list[Object]) -> None:
    """So no object changes with their keys."""
    (gateways,) = [
        each for each in cluster_of(before)["workerGroupSpecs"] if each["groupName"] == "gateways"
    ]
    spec = gateways["template"]["spec"]
    (volume,) = [each for each in spec["volumes"] if each["name"] == "tenants"]
    secrets = [each["secret"] for each in volume["projected"]["sources"] if "secret" in each]
    ours = ["demo-headrace-tenants", *(f"demo-headrace-tenants-{n}" for n in range(1, 21))]
    assert secrets == [*({"name": each, "optional": True} for each in ours), {"name": "keys"}]
    (mount,) = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "tenants"]
    assert "subPath" not in mount, "a mount of a part never changes"


def test_a_secret_of_our_names_is_mounted_once_and_need_not_be_listed(before: list[Object]) -> None:
    listed = ["demo-headrace-tenants", "demo-headrace-tenants-20", "keys"]
    after = objects(changed({"tenantFiles": {"existingSecrets": listed}}))
    assert cluster_of(after) == cluster_of(before)
    listed = ["keys", "demo-headrace-tenants-21"]
    assert rolls(
        cluster_of(before),
        cluster_of(objects(changed({"tenantFiles": {"existingSecrets": listed}}))),
    )


def test_the_page_is_up_to_date() -> None:
    assert len(ROWS) == len({what for what, _, _ in ROWS}) > 94
    assert PAGE.read_text() == page(), "python -m tests.kube.changes"


def test_a_changed_model_changes_its_own_application_alone() -> None:
    change = {
        "models": {"device": DEVICE | {"slo": {"latency_ms": 50}}, "more": {"runtime": "synthetic"}}
    }
    before, after = objects(BEFORE), objects(BEFORE | change)
    assert cluster_of(before) == cluster_of(after)
    old, new = (_by_name(serve_config_of(each)) for each in (before, after))
    assert {name for name in new if old.get(name) != new[name]} == {
        "model-device", "model-more", "headrace-control",
    }  # fmt: skip
    slower = BEFORE | {"models": {"device": DEVICE | {"batch": {"max_size": 8}}}}
    new = _by_name(serve_config_of(objects(slower)))
    assert {name for name in new if old[name] != new[name]} == {"model-device"}


def test_a_changed_pool_changes_no_models_application() -> None:
    few, many = ({"scaling": {"pool": {"max": most}}} for most in (1, 2))
    before, after = objects(BEFORE | few), objects(BEFORE | many)
    assert cluster_of(before) == cluster_of(after)
    old, new = (_by_name(serve_config_of(each)) for each in (before, after))
    assert {name for name in new if old[name] != new[name]} == {
        "headrace-pool", "headrace-control",
    }  # fmt: skip
    assert old["headrace-pool"]["args"] == new["headrace-pool"]["args"]


def test_a_new_chart_version_rolls_nothing() -> None:
    """What a release's number changes stands in no pod."""
    text = str(cluster_of(objects(BEFORE | {"image": {"tag": "1"}})))
    assert "helm.sh/chart" not in text
    assert "0.1.0" not in text


def test_the_tokens_of_the_check_are_told_apart() -> None:
    """The rule itself: order matters, and so does what stands in a pod."""
    cluster = cluster_of(objects(BEFORE))
    swapped = copy.deepcopy(cluster)
    swapped["workerGroupSpecs"].reverse()
    assert not rolls(cluster, copy.deepcopy(cluster))
    assert rolls(cluster, swapped)


def _by_name(config: Object) -> dict[str, Any]:
    return {each["name"]: each for each in config["applications"]}
