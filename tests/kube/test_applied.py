"""Changes that make no other cluster reach the one that runs: by KubeRay itself, or by the job of
`upgrade.applyCounts`. (Those of the Serve config: test_rolls.py.)"""

from __future__ import annotations

import copy
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.deployments.certificates import Authority
from tests.kube.api_server import api_server, json_patch
from tests.kube.changes import BEFORE, CHANGES, CPU, MIG, Outcome, changed
from tests.kube.chart import CHART, NAMESPACE, Object, Values, cluster_of, objects, ray_service
from tests.kube.kuberay import Operator, rolls

SCALE = runpy.run_path(str(CHART / "files" / "scale.py"))
NAME = "demo-headrace"
MORE_GATEWAYS = {"gateway": {"replicas": 5}}


class Kubernetes:
    """What the job asks: a RayService, and the clusters that an operator made of it."""

    def __init__(self, operator: Operator) -> None:
        self.operator, self.service, self.patches = operator, {}, 0

    def upgrade(self, values: Values) -> None:
        """`helm upgrade`, until the operator and the job have done what they do."""
        self.service = ray_service(objects(values))
        self.operator.reconcile(self.service)
        SCALE["apply"](self.ask, NAME)

    def ask(self, method: str, resource: str, name: str, body: Any = None) -> Any:
        if resource == "rayservices":
            return self.service | {"status": self.operator.status()}
        cluster = self.operator.clusters.get(name)
        if method == "PATCH":
            self.patches += 1
            json_patch(cluster, body)
        return cluster


@pytest.fixture
def running() -> Kubernetes:
    kubernetes = Kubernetes(Operator())
    kubernetes.upgrade(BEFORE)
    kubernetes.operator.serves()
    assert kubernetes.patches == 0, "a new cluster has what it ought to have"
    return kubernetes


def active(kubernetes: Kubernetes) -> Object:
    spec: Object = kubernetes.operator.clusters[kubernetes.operator.active]["spec"]
    return spec


def bounded(cluster: Object) -> Object:
    """Without the numbers that the autoscaler chooses between their bounds."""
    groups = [{**each, "replicas": 0} for each in cluster["workerGroupSpecs"]]
    return cluster | {"workerGroupSpecs": groups}


@pytest.mark.parametrize("what", CHANGES[Outcome.COUNTS])
def test_a_change_of_numbers_or_tolerations_is_applied_to_the_cluster_that_runs(
    running: Kubernetes, what: str
) -> None:
    first, values = running.operator.active, changed(CHANGES[Outcome.COUNTS][what])
    running.upgrade(values)
    assert (running.operator.active, running.operator.pending) == (first, "")
    wanted = cluster_of(objects(values))
    assert active(running) == wanted
    assert running.patches == 1
    running.upgrade(values)
    assert running.patches == 1, "it is there already"
    running.upgrade(BEFORE)
    assert bounded(active(running)) == bounded(cluster_of(objects(BEFORE))), "so is a rollback"


def as_earlier_charts_made(cluster: Object) -> None:
    """As they left it and KubeRay wrote it: no annotation, fields that nobody gave, and quantities
    in another form than the values'."""
    cluster["metadata"]["annotations"] = {}
    for group in cluster["spec"]["workerGroupSpecs"]:
        group["scaleStrategy"] = {}
        group["template"]["spec"]["containers"][0]["lifecycle"] = {}
    spec = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    assert spec["containers"][0]["resources"]["limits"] == {"cpu": "2", "memory": "8Gi"}
    spec["containers"][0]["resources"]["limits"] = {"cpu": "2000m", "memory": "8192Mi"}
    (shared,) = [each for each in spec["volumes"] if each["name"] == "shared-memory"]
    shared["emptyDir"]["sizeLimit"] = "0.5625Gi"


@pytest.mark.parametrize("what", CHANGES[Outcome.COUNTS])
def test_a_cluster_of_an_earlier_chart_is_told_too(running: Kubernetes, what: str) -> None:
    first, values = running.operator.active, changed(CHANGES[Outcome.COUNTS][what])
    as_earlier_charts_made(running.operator.clusters[first])
    running.upgrade(values)
    assert (running.operator.active, running.operator.pending) == (first, "")
    assert running.patches == 1
    wanted = cluster_of(objects(values))
    for now, group in zip(
        active(running)["workerGroupSpecs"], wanted["workerGroupSpecs"], strict=True
    ):
        assert {name: now[name] for name in ("minReplicas", "maxReplicas")} == {
            name: group[name] for name in ("minReplicas", "maxReplicas")
        }
        spec, its = group["template"]["spec"], now["template"]["spec"]
        assert its.get("tolerations") == spec.get("tolerations")


def test_one_of_an_earlier_chart_is_left_alone_while_kuberay_replaces_it(
    running: Kubernetes,
) -> None:
    as_earlier_charts_made(running.operator.clusters[running.operator.active])
    before = copy.deepcopy(active(running))
    running.upgrade(changed({"image": {"tag": "2"}, "gateway": {"replicas": 1}}))
    assert running.operator.pending
    assert active(running) == before


@pytest.mark.parametrize(
    ("where", "other"), [("requests", {"cpu": "2001m"}), ("limits", {"cpu": "2", "memory": "8G"})]
)
def test_a_quantity_is_told_by_what_it_is(where: str, other: Object) -> None:
    """Else a cluster of an earlier chart would be taken for one with the same pods."""
    one = cluster_of(objects(BEFORE))
    another = copy.deepcopy(one)
    container = another["headGroupSpec"]["template"]["spec"]["containers"][0]
    container["resources"][where] = other
    assert SCALE["unscaled"](another) != SCALE["unscaled"](one)


def test_what_neither_the_job_nor_kuberay_changes_fails_the_upgrade(running: Kubernetes) -> None:
    cluster = running.operator.clusters[running.operator.active]
    as_earlier_charts_made(cluster)
    cluster["spec"]["headGroupSpec"]["template"]["spec"]["schedulerName"] = "by hand"
    with pytest.raises(SystemExit, match="its numbers of pods and tolerations were not changed"):
        running.upgrade(changed(MORE_GATEWAYS))
    assert running.patches == 0


def test_without_the_job_kuberay_leaves_the_cluster_as_it_is(running: Kubernetes) -> None:
    before = copy.deepcopy(active(running))
    running.service = ray_service(objects(changed(MORE_GATEWAYS)))
    running.operator.reconcile(running.service)
    assert active(running) == before


def test_the_number_of_pods_stays_the_autoscalers_within_the_bounds(running: Kubernetes) -> None:
    active(running)["workerGroupSpecs"][1]["replicas"] = 2
    running.upgrade(BEFORE | {"workerGroups": [CPU | {"maxReplicas": 9}, MIG]})
    assert active(running)["workerGroupSpecs"][1]["replicas"] == 2
    running.upgrade(BEFORE | {"workerGroups": [CPU | {"minReplicas": 4, "maxReplicas": 9}, MIG]})
    assert active(running)["workerGroupSpecs"][1]["replicas"] == 4
    running.upgrade(BEFORE | {"workerGroups": [CPU | {"maxReplicas": 1}, MIG]})
    assert active(running)["workerGroupSpecs"][1]["replicas"] == 1


def test_without_an_autoscaler_it_is_the_values(running: Kubernetes) -> None:
    groups = [CPU, MIG | {"minReplicas": 1}]
    values = BEFORE | {"autoscaler": {"enabled": False}, "workerGroups": groups}
    running.upgrade(values)
    running.operator.serves()
    running.upgrade(values | {"workerGroups": [CPU | {"minReplicas": 2}, groups[1]]})
    assert [each["replicas"] for each in active(running)["workerGroupSpecs"]] == [3, 2, 1]


def test_a_cluster_that_is_being_replaced_keeps_what_it_has(running: Kubernetes) -> None:
    """Its callers need its pods until the other serves."""
    before = copy.deepcopy(active(running))
    running.upgrade(changed({"image": {"tag": "2"}, "gateway": {"replicas": 1}}))
    assert running.operator.pending
    assert active(running) == before


def test_one_that_is_never_replaced_gets_what_can_be_applied(running: Kubernetes) -> None:
    never = {"upgrade": {"strategy": "None"}, "image": {"tag": "2"}, "gateway": {"replicas": 4}}
    running.upgrade(changed(never))
    assert running.operator.pending == ""
    assert active(running)["workerGroupSpecs"][0]["maxReplicas"] == 4
    assert rolls(active(running), cluster_of(objects(changed(never))))


def test_a_group_at_the_end_is_added_by_kuberay_and_scaled_afterwards(running: Kubernetes) -> None:
    groups = [CPU, MIG, CPU | {"name": "more"}]
    running.upgrade(BEFORE | {"workerGroups": groups})
    assert running.operator.pending == ""
    assert [each["groupName"] for each in active(running)["workerGroupSpecs"]][-1] == "more"
    running.upgrade(BEFORE | {"workerGroups": [*groups[:2], groups[2] | {"maxReplicas": 7}]})
    assert active(running)["workerGroupSpecs"][-1]["maxReplicas"] == 7


def test_a_cluster_of_another_name_than_the_status_says_is_nobodys(running: Kubernetes) -> None:
    running.operator.clusters.clear()
    running.upgrade(changed(MORE_GATEWAYS))
    assert running.patches == 0


def test_the_job_asks_kubernetes_as_its_account(
    running: Kubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    for name, text in {"token": "its token\n", "namespace": NAMESPACE}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "ca.crt").write_bytes(Path(authority.file).read_bytes())
    cluster = running.operator.active
    wanted = ray_service(objects(changed(MORE_GATEWAYS))) | {"status": running.operator.status()}
    with api_server(authority.tls()) as (url, store):
        host, port = url.removeprefix("https://").split(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        at = {
            plural: ("ray.io/v1", plural, NAMESPACE, name)
            for plural, name in {"rayservices": NAME, "rayclusters": cluster}.items()
        }
        store.put(at["rayservices"], wanted)
        its = running.operator.clusters[cluster]
        metadata = {"name": cluster, "annotations": its["metadata"]["annotations"]}
        store.put(
            at["rayclusters"], {"kind": "RayCluster", "spec": its["spec"], "metadata": metadata}
        )
        ask = SCALE["asker"](tmp_path)
        SCALE["apply"](ask, NAME)
        assert store.objects[at["rayclusters"]]["spec"] == cluster_of([wanted])
        assert store.credentials == {"Bearer its token"}
        assert ask("GET", "rayclusters", "another") is None
        with pytest.raises(SystemExit, match=f"PATCH rayclusters/{cluster}: 422: .*/spec/x"):
            ask("PATCH", "rayclusters", cluster, [{"op": "test", "path": "/spec/x", "value": 1}])
