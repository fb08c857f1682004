"""What brings the models' files to a node before a replica asks for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deployments.settings_files.load import load
from tests.kube import built_ins
from tests.kube.chart import Object, cluster_of, objects
from tests.kube.kuberay import rolls
from tests.kube.pods import as_pod, insecurities

MODEL = {"runtime": "onnxruntime", "source": "minilm/model.onnx", "profile_s": 1e-7}
EGRESS = [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 443}]}]
VALUES: dict[str, Any] = {
    "models": {"minilm": MODEL},
    "workerGroups": [{"name": "cpu", "cpu": 4, "memory": "4Gi"}],
    "cache": {"type": "hostPath", "hostPath": "/srv/headrace"},
    "storage": {"type": "pvc", "path": "/srv/models"},
    "envFrom": [{"secretRef": {"name": "object-store"}}],
    "networkPolicy": {"egress": EGRESS},
    "prewarm": {"enabled": True, "artifacts": "fetch", "cpu": 2, "memory": "3Gi"},
}


def daemon(found: list[Object]) -> Object:
    (each,) = [each for each in found if each["kind"] == "DaemonSet"]
    template: Object = each["spec"]["template"]
    return template


def policies(found: list[Object]) -> dict[str, Object]:
    return {e["metadata"]["name"]: e for e in found if e["kind"] == "NetworkPolicy"}


def with_artifacts(what: str) -> list[Object]:
    return objects(VALUES | {"prewarm": VALUES["prewarm"] | {"artifacts": what}})


@pytest.mark.parametrize(
    ("what", "command"),
    [
        ("fetch", ["headrace", "stage", "/settings/settings.yaml"]),
        ("convert", ["headrace", "stage", "--convert", "/settings/settings.yaml"]),
    ],
)
def test_each_node_stages_the_releases_models_within_bounds(
    what: str, command: list[str], tmp_path: Path
) -> None:
    found = with_artifacts(what)
    (stage,) = daemon(found)["spec"]["initContainers"]
    assert stage["command"] == command
    assert stage["resources"]["limits"] == {"cpu": "2", "memory": "3Gi"}
    assert stage["envFrom"] == VALUES["envFrom"]
    (config,) = [each for each in found if each["metadata"]["name"] == "demo-headrace-prewarm"
                 and each["kind"] == "ConfigMap"]  # fmt: skip
    (tmp_path / "settings.yaml").write_text(config["data"]["settings.yaml"])
    assert load(tmp_path / "settings.yaml", here=False).models["minilm"].profile_s == 1e-7


def test_it_fills_the_cache_that_replicas_read() -> None:
    found = with_artifacts("fetch")
    spec = daemon(found)["spec"]
    replica = cluster_of(found)["workerGroupSpecs"][1]["template"]["spec"]
    for name in ("cache", "models"):
        (mine,), (theirs,) = (
            [each for each in pod["volumes"] if each["name"] == name] for pod in (spec, replica)
        )
        assert mine == theirs
    mounts = [
        {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
        for container in (spec["initContainers"][0], replica["containers"][0])
    ]
    assert [each["cache"] for each in mounts] == ["/var/cache/headrace"] * 2
    assert [each["models"] for each in mounts] == ["/srv/models"] * 2
    told = [
        {e["name"]: e.get("value") for e in container["env"]}
        for container in (spec["initContainers"][0], replica["containers"][0])
    ]
    for name in ("XDG_CACHE_HOME", "HEADRACE_SOURCES"):
        assert told[0][name] == told[1][name]
    assert spec["securityContext"]["runAsUser"] == replica["securityContext"]["runAsUser"]


def test_it_is_a_proper_pod_that_only_needs_the_nodes_folder() -> None:
    template = daemon(with_artifacts("fetch"))
    assert list(built_ins.complaints(as_pod(template))) == []
    assert list(insecurities(template)) == ["volume cache is a hostPath"]


def test_a_private_ca_is_mounted_where_files_are_fetched() -> None:
    mount = {"name": "ca", "mountPath": "/etc/private-ca", "readOnly": True}
    over = {
        "spec": {
            "volumes": [{"name": "ca", "configMap": {"name": "private-ca"}}],
            "initContainers": [{"name": "artifacts", "volumeMounts": [mount]}],
        }
    }
    env = [{"name": "AWS_CA_BUNDLE", "value": "/etc/private-ca/ca.crt"},
           {"name": "HOME", "value": "/home"}]  # fmt: skip
    prewarm = VALUES["prewarm"] | {"podTemplate": over}
    spec = daemon(objects(VALUES | {"prewarm": prewarm, "env": env}))["spec"]
    (stage,) = spec["initContainers"]
    assert mount in stage["volumeMounts"]
    assert over["spec"]["volumes"][0] in spec["volumes"]
    told = {each["name"]: each["value"] for each in stage["env"]}
    assert len(told) == len(stage["env"]), "each is there once"
    assert told["AWS_CA_BUNDLE"] == "/etc/private-ca/ca.crt"
    assert told["HOME"] == "/home"
    assert stage["command"][:2] == ["headrace", "stage"]


def test_it_may_ask_where_files_lie() -> None:
    policy = policies(with_artifacts("fetch"))["demo-headrace-files"]["spec"]
    assert policy["egress"] == EGRESS
    labels = daemon(with_artifacts("fetch"))["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert "demo-headrace-files" not in policies(with_artifacts("none"))


def test_other_models_replace_its_pods_and_never_rays() -> None:
    before = with_artifacts("fetch")
    changed = VALUES | {"models": {"minilm": MODEL | {"source": "minilm/new.onnx"}}}
    for after in (objects(changed), with_artifacts("convert"), with_artifacts("none")):
        assert not rolls(cluster_of(before), cluster_of(after))
        assert json.dumps(daemon(before)) != json.dumps(daemon(after))
    same = objects(VALUES | {"tenants": {"acme": {"weight": 2}}})
    assert daemon(before) == daemon(same)


def test_without_artifacts_it_holds_the_image_alone() -> None:
    spec = daemon(with_artifacts("none"))["spec"]
    assert "initContainers" not in spec
    assert "volumes" not in spec
