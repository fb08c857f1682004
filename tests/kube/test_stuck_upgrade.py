"""An upgrade whose second cluster cannot start (no free devices): what rollback does by itself, and
the ways out that docs/kubernetes.md names, by KubeRay's rules."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from deployments import cli
from deployments.gateway.application import REVOKED_KEYS
from tests.kube.api_server import api_server
from tests.kube.changes import changed
from tests.kube.chart import ROOT, Object, cluster_of, objects, ray_service
from tests.kube.helm_client import kubeconfig
from tests.kube.kuberay import Operator

OTHER_IMAGE = {"image": {"tag": "2"}}
ANOTHER_MODEL = {"models": {"more": {"runtime": "synthetic"}}}
DROPS_PENDING = (
    """--subresource=status --type=merge -p '{"status":{"pendingServiceStatus":null}}'"""
)


def service(change: Object) -> Object:
    return ray_service(objects(changed(change)))


@pytest.fixture
def stuck() -> Operator:
    operator = Operator()
    operator.reconcile(service({}))
    operator.serves()
    operator.reconcile(service(OTHER_IMAGE))
    assert (operator.active, operator.pending) == ("demo-headrace-1", "demo-headrace-2")
    return operator


def test_what_changes_meanwhile_reaches_the_pending_cluster_alone(stuck: Operator) -> None:
    before = stuck.serve_configs[stuck.active]
    stuck.reconcile(service(OTHER_IMAGE | ANOTHER_MODEL))
    assert "model-more" in stuck.serve_configs[stuck.pending]
    assert stuck.serve_configs[stuck.active] == before


def test_both_clusters_gateways_read_the_same_secrets(stuck: Operator) -> None:
    """So a key that is taken out of its Secret ends in the cluster that serves, too."""
    volumes = [
        each
        for cluster in stuck.clusters.values()
        for each in cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["volumes"]
        if each["name"] == "tenants"
    ]
    assert len(volumes) == 2
    assert volumes[0] == volumes[1]


def _revoked_of(cluster: Object) -> tuple[Object, str]:
    """The volume in which a cluster's gateways look for revoked keys, and where they do."""
    spec = cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    (volume,) = [each for each in spec["volumes"] if each["name"] == "revoked-keys"]
    (ray,) = spec["containers"]
    (mount,) = [each for each in ray["volumeMounts"] if each["name"] == "revoked-keys"]
    (place,) = [each["value"] for each in ray["env"] if each["name"] == REVOKED_KEYS]
    assert place == mount["mountPath"]
    assert "subPath" not in mount, "a mount of a part never changes"
    (source,) = volume["projected"]["sources"]
    return source["configMap"], place


def test_a_revoked_key_ends_in_both_clusters_and_in_those_to_come(
    stuck: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`headrace key revoke --release` writes what the gateways of each cluster mount."""
    if shutil.which("kubectl") is None:
        pytest.skip("REVOKING IS NOT TRIED: no kubectl")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    hashes = ["1" * 64, "2" * 64, "1" * 64]
    with api_server() as (url, store):
        (tmp_path / "config").write_text(kubeconfig(url))
        owner = {"kind": "RayService", "name": "demo-headrace"}
        for name, kind, owners in (
            ("demo-headrace", "RayService", []),
            *((each, "RayCluster", [owner]) for each in stuck.clusters),
        ):
            spec = stuck.clusters[name]["spec"] if owners else {}
            made = {"apiVersion": "ray.io/v1", "kind": kind, "spec": spec}
            metadata = {"name": name, "ownerReferences": owners}
            key = ("ray.io/v1", f"{kind.lower()}s", "headrace", name)
            store.put(key, made | {"metadata": metadata})
        for each in hashes:
            done = CliRunner().invoke(
                cli.main,
                ["key", "revoke", f"sha256:{each}", "--release", "headrace/demo-headrace"],
            )
            assert done.exit_code == 0, done.output
            assert "within two minutes: demo-headrace-1, demo-headrace-2\n" in done.stdout
            assert "(context " in done.stdout
        config_maps = store.of_kind("ConfigMap")
    stuck.reconcile(service({}))  # a rollback, which starts a third
    assert len(stuck.clusters) == 3
    for cluster in stuck.clusters.values():
        volume, _ = _revoked_of(cluster)
        assert volume["optional"], "made when the first key is revoked"
        assert config_maps[volume["name"]]["data"].keys() == set(hashes)


def test_no_upgrade_and_no_rollback_writes_the_revoked_keys() -> None:
    for change in ({}, OTHER_IMAGE):
        names = [each["metadata"]["name"] for each in objects(changed(change))]
        assert "demo-headrace-revoked-keys" not in names


def test_a_rollback_by_itself_starts_a_third(stuck: Operator) -> None:
    stuck.reconcile(service({}))
    assert stuck.pending == "demo-headrace-3"
    assert len(stuck.clusters) == 3


def test_after_a_rollback_no_cluster_need_be_pending(stuck: Operator) -> None:
    stuck.reconcile(service({}))
    stuck.pending = ""  # the documented patch of the status
    stuck.reconcile(service({}))
    assert (stuck.active, stuck.pending) == ("demo-headrace-1", "")
    stuck.deletes_what_dangles()
    assert list(stuck.clusters) == ["demo-headrace-1"]
    stuck.reconcile(service(ANOTHER_MODEL))
    assert "model-more" in stuck.serve_configs[stuck.active], "it is told of changes again"
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    assert f"kubectl -n headrace patch rayservice demo-headrace {DROPS_PENDING}" in page


def test_without_a_rollback_that_patch_starts_it_anew(stuck: Operator) -> None:
    stuck.pending = ""
    stuck.reconcile(service(OTHER_IMAGE))
    assert stuck.pending == "demo-headrace-3"


def test_the_way_on_is_to_give_up_the_cluster_that_serves(stuck: Operator) -> None:
    """Its devices are the pending one's then; nobody is answered meanwhile."""
    del stuck.clusters[stuck.active]
    stuck.reconcile(service(OTHER_IMAGE))
    assert (stuck.pending, list(stuck.clusters)) == ("demo-headrace-2", ["demo-headrace-2"])
    stuck.serves()
    assert stuck.active == "demo-headrace-2"


def test_strategy_none_never_comes_there() -> None:
    operator, never = Operator(), {"upgrade": {"strategy": "None"}}
    operator.reconcile(service(never))
    operator.serves()
    operator.reconcile(service(never | OTHER_IMAGE))
    assert operator.pending == ""
    assert operator.clusters[operator.active]["spec"] == cluster_of(objects(changed(never)))
