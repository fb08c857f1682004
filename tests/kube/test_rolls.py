"""Which changes of the values start another cluster (twice the devices while it lasts), and which
are made as it runs. docs/kubernetes.md has the same table."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.kube.chart import ROOT, Object, Values, cluster_of, objects, serve_config_of
from tests.kube.kuberay import rolls

CPU = {"name": "cpu", "cpu": 4, "memory": "4Gi", "minReplicas": 1, "maxReplicas": 2}
MIG = {"name": "mig", "cpu": 2, "memory": "12Gi", "maxReplicas": 2, "migProfile": "1g.18gb"}
BEFORE: Values = {
    "models": {"device": {"runtime": "synthetic", "options": {"base_ms": 2}}},
    "gateway": {"replicas": 2},
    "workerGroups": [CPU, MIG],
}
DEVICE = BEFORE["models"]["device"]
# What changes, as the manual says it; the change; whether the cluster is replaced.
TABLE: list[tuple[str, dict[str, Any], bool]] = [
    ("a model's settings", {"models": {"device": DEVICE | {"slo": {"latency_ms": 50}}}}, False),
    ("another model", {"models": {"device": DEVICE, "more": {"runtime": "synthetic"}}}, False),
    ("a model's replicas", {"models": {"device": DEVICE | {"replicas": {"count": 3}}}}, False),
    (
        "how models are scaled, `scaling`",
        {"models": {"device": DEVICE | {"replicas": {"max": 9}}}, "scaling": {"pool": {"max": 2}}},
        False,
    ),
    ("tenants", {"tenants": {"acme": {"weight": 3}}}, False),
    ("`gateway.replicas`", {"gateway": {"replicas": 3}}, False),
    (
        "`gateway.limits.max_held_bytes`, `allowed_hosts`",
        {
            "gateway": {
                "replicas": 2,
                "limits": {"max_held_bytes": 4096},
                "allowed_hosts": ["a.example"],
            }
        },
        False,
    ),
    (
        "a group's `minReplicas`, `maxReplicas`",
        {"workerGroups": [CPU | {"maxReplicas": 9}, MIG]},
        False,
    ),
    (
        "a group's `tolerations`",
        {"workerGroups": [CPU | {"tolerations": [{"key": "a", "operator": "Exists"}]}, MIG]},
        False,
    ),
    ("a group added at the end", {"workerGroups": [CPU, MIG, CPU | {"name": "more"}]}, False),
    ("`upgrade`", {"upgrade": {"strategy": "None"}}, False),
    (
        "`networkPolicy`, `ingress`, `podMonitors`, `observability`, `tenantFiles.config`",
        {
            "networkPolicy": {"enabled": False},
            "observability": {"rules": {"enabled": True}, "dashboards": {"enabled": True}},
        },
        False,
    ),
    ("`commonLabels`", {"commonLabels": {"team": "search"}}, False),
    ("a group added elsewhere", {"workerGroups": [CPU | {"name": "first"}, CPU, MIG]}, True),
    ("a group taken away", {"workerGroups": [CPU]}, True),
    (
        "a group's CPUs, memory, devices, labels",
        {"workerGroups": [CPU | {"memory": "8Gi"}, MIG]},
        True,
    ),
    ("the image", {"image": {"tag": "0.2.0"}}, True),
    ("`head`, `gateways`", {"head": {"memory": "16Gi"}}, True),
    ("`env`, `envFrom`, `podTemplate`", {"env": [{"name": "A", "value": "1"}]}, True),
    ("`drainSeconds`", {"drainSeconds": 900}, True),
    ("`gateway.port`, `metrics_port`", {"gateway": {"replicas": 2, "port": 9000}}, True),
    (
        "`gateway.log`, `haproxy_*`, `drain_s`, `replay`, `trusted_proxies`; of `limits` "
        "`max_requests`, `max_body_bytes`, `headers_timeout_s`, `body_timeout_s`, "
        "`connections_per_source`",
        {"gateway": {"replicas": 2, "limits": {"max_body_bytes": 4096}}},
        True,
    ),
    ("`storage`, `cache`", {"cache": {"size": "99Gi"}}, True),
    ("`faultTolerance`, `auth`, `autoscaler`", {"autoscaler": {"idleTimeoutSeconds": 60}}, True),
]


@pytest.mark.parametrize(("what", "change", "rolled"), TABLE, ids=[row[0] for row in TABLE])
def test_a_change_rolls_the_cluster_or_does_not(
    what: str, change: dict[str, Any], rolled: bool
) -> None:
    before, after = objects(BEFORE), objects(BEFORE | change)
    assert rolls(cluster_of(before), cluster_of(after)) is rolled


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


def test_the_manual_has_the_same_table() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    for what, _, rolled in TABLE:
        assert f"| {what} | {'another cluster' if rolled else 'as it runs'} |" in page, what


def _by_name(config: Object) -> dict[str, Any]:
    return {each["name"]: each for each in config["applications"]}
