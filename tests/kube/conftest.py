"""Tests here need the packages of the extra `kube`; some the CRDs, which are not ours to keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kube import crds
from tests.kube.chart import Object, Values, objects, values_of

_HERE = Path(__file__).parent
_PLAIN = """
models:
  device: {runtime: synthetic, options: {base_ms: 2}}
workerGroups:
  - {name: cpu, minReplicas: 1, maxReplicas: 2, cpu: 4, memory: 4Gi, minAvailable: 1}
  - {name: mig, maxReplicas: 2, cpu: 2, memory: 12Gi, migProfile: 1g.18gb}
ingress: {type: route, parentRefs: [{name: edge}]}
podMonitors: {enabled: true}
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.kube)


@pytest.fixture(scope="session")
def real_crds() -> crds.Crds:
    there = crds.found()
    if there is None:
        pytest.skip(f"CUSTOM RESOURCES ARE NOT CHECKED: no CRDs; ${crds.PLACE} may name them")
    return there


@pytest.fixture(scope="session")
def crds_if_there() -> crds.Crds | None:
    """For tests that check more than custom resources."""
    return crds.found()


@pytest.fixture
def plain() -> Values:
    """Values that most objects come of."""
    return values_of(_PLAIN)


@pytest.fixture
def plain_objects(plain: Values) -> list[Object]:
    return objects(plain)
