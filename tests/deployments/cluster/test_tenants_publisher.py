"""What the publishing application puts into the cluster's store, and when it does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from autoscaling.settings import GroupTerms, ModelTerms, ScalingSettings
from deployments.cluster.tenants_publisher import TenantsPublisher
from deployments.contract import tenants_store
from deployments.contract.scaling import store
from deployments.contract.scaling.document import ScalingDocument
from deployments.settings.load import SettingsErrors

SCALING = ScalingDocument(ScalingSettings({"m": ModelTerms("m", 0.1, (GroupTerms("", 1, 4),))}))
TENANTS = {"tenants": "tenants: {acme: {weight: 3}}\n", "priorities": ["standard"]}


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found: dict[str, Any] = {}
    monkeypatch.setattr(store, "put", found.__setitem__)

    def publish(text: str, deployment: str) -> None:
        found["tenants"], found["digest"] = text, deployment

    monkeypatch.setattr(tenants_store, "publish_deployed", publish)
    return found


def test_both_are_published(published: dict[str, Any]) -> None:
    TenantsPublisher({**TENANTS, "scaling": SCALING.plain()})
    assert published["scaling"] == SCALING.text()
    assert published["tenants"] == TENANTS["tenants"]


def test_a_change_of_scaling_publishes_no_tenants_anew(published: dict[str, Any]) -> None:
    """They would take back what an operator has published since."""
    TenantsPublisher({**TENANTS, "scaling": SCALING.plain()})
    digest = published["digest"]
    TenantsPublisher({**TENANTS, "scaling": ScalingDocument().plain()})
    assert published["digest"] == digest


def test_where_a_path_names_the_tenants_scaling_is_published_alone(published) -> None:
    TenantsPublisher({"scaling": SCALING.plain()})
    assert published == {"scaling": SCALING.text()}


def test_what_is_wrong_is_not_published_at_all(published: dict[str, Any]) -> None:
    with pytest.raises(SettingsErrors):
        TenantsPublisher({**TENANTS, "tenants": "tenants: 3\n", "scaling": SCALING.plain()})
    with pytest.raises(msgspec.ValidationError):
        TenantsPublisher({**TENANTS, "scaling": {"settings": 3}})
    assert published == {}
