"""A release's life in Helm's own engine, against an API server that stores objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kube.api_server import Store
from tests.kube.chart import CHART, RELEASE, Object, Values, ray_service
from tests.kube.helm_client import helm_and_store
from tests.kube.kuberay import rolls

SLOW_MODEL = {"models": {"device": {"runtime": "synthetic", "slo": {"latency_ms": 500}}}}
NO_SUCH_FALLBACK = {"models": {"device": {"runtime": "synthetic", "fallback": "cheaper"}}}
_WAIT_S = 30


@pytest.fixture
def server() -> Iterator[tuple[Any, Store]]:
    with helm_and_store() as both:
        yield both


def service(store: Store) -> Object:
    return ray_service(list(store.objects.values()))


def test_install_upgrade_rollback_and_uninstall(server: tuple[Any, Store], plain: Values) -> None:
    helm, store = server
    helm.install(CHART, RELEASE, plain, timeout=_WAIT_S)
    installed = service(store)
    assert set(store.of_kind("NetworkPolicy")) > {"demo-headrace-deny", "demo-headrace-head"}
    assert (store.of_kind("Job"), store.of_kind("ConfigMap")) == ({}, {}), "hooks leave nothing"

    assert store.jobs == ["demo-headrace-check"]

    helm.upgrade(CHART, RELEASE, plain | SLOW_MODEL, timeout=_WAIT_S)
    assert store.jobs[1:] == ["demo-headrace-check", "demo-headrace-scale"]
    upgraded = service(store)
    assert upgraded["spec"]["serveConfigV2"] != installed["spec"]["serveConfigV2"]
    clusters = [each["spec"]["rayClusterConfig"] for each in (installed, upgraded)]
    assert not rolls(*clusters)

    helm.rollback(RELEASE, timeout=_WAIT_S)
    assert store.jobs[3:] == ["demo-headrace-scale"]
    assert service(store)["spec"] == installed["spec"]
    assert [each["status"] for each in helm.history(RELEASE)] == [
        "superseded", "superseded", "deployed",
    ]  # fmt: skip

    helm.uninstall(RELEASE, timeout=_WAIT_S)
    assert store.objects == {}


def test_an_upgrade_that_the_check_refuses_changes_nothing(
    server: tuple[Any, Store], plain: Values
) -> None:
    import helm_python

    helm, store = server
    helm.install(CHART, RELEASE, plain, timeout=_WAIT_S)
    before = dict(store.objects)
    with pytest.raises(helm_python.HelmError, match="demo-headrace-check"):
        helm.upgrade(CHART, RELEASE, plain | NO_SUCH_FALLBACK, timeout=_WAIT_S)
    (job,) = store.of_kind("Job").values()
    assert "cheaper" in job["status"]["conditions"][0]["message"]
    after = {key: each for key, each in store.objects.items() if "check" not in key[3]}
    assert after == before


def test_an_installation_that_the_check_refuses_makes_no_cluster(
    server: tuple[Any, Store], plain: Values
) -> None:
    import helm_python

    helm, store = server
    with pytest.raises(helm_python.HelmError, match="demo-headrace-check"):
        helm.install(CHART, RELEASE, plain | NO_SUCH_FALLBACK, timeout=_WAIT_S)
    assert store.of_kind("RayService") == {}


def test_a_claim_of_an_earlier_chart_is_kept_by_its_name(
    server: tuple[Any, Store], plain: Values
) -> None:
    import helm_python

    def stored(**pvc: Any) -> Values:
        return plain | {"storage": {"type": "pvc", "pvc": pvc}}

    helm, store = server
    helm.install(CHART, RELEASE, stored(accessModes=["ReadOnlyMany"]), timeout=_WAIT_S)
    helm.upgrade(
        CHART, RELEASE, stored(accessModes=["ReadOnlyMany"], size="200Gi"), timeout=_WAIT_S
    )
    with pytest.raises(helm_python.HelmError, match="spec is immutable after creation"):
        helm.upgrade(CHART, RELEASE, stored(size="200Gi"), timeout=_WAIT_S)
    helm.upgrade(CHART, RELEASE, stored(existingClaim="demo-headrace-models"), timeout=_WAIT_S)
    (claim,) = store.of_kind("PersistentVolumeClaim").values()
    assert claim["spec"]["accessModes"] == ["ReadOnlyMany"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "200Gi"
    assert "'claimName': 'demo-headrace-models'" in str(service(store))


def test_claims_of_devices_are_refused_by_a_server_that_has_none(
    server: tuple[Any, Store], plain: Values
) -> None:
    import helm_python

    helm, store = server
    mig = {"name": "claims", "cpu": 2, "memory": "12Gi", "migProfile": "1g.18gb", "devices": "dra"}
    claims = plain | {"workerGroups": [*plain["workerGroups"], mig]}
    store.version = "v1.33.4"
    with pytest.raises(helm_python.HelmError, match=r"needs Kubernetes 1\.34") as refused:
        helm.install(CHART, RELEASE, claims, timeout=_WAIT_S)
    assert "this is v1.33.4" in str(refused.value)
    assert store.objects == {}
