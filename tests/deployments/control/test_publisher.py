"""What of Serve's list is put into the cluster's store, and when it is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray

from deployments.contract.listed import parse
from deployments.contract.scaling import document
from deployments.control import publisher
from deployments.control.dashboard import ClusterError
from deployments.control.publisher import pin
from deployments.control.scaling import store
from deployments.process import actors, adapters_store, cluster_store, tenants_store
from deployments.process.audit import AuditLine
from deployments.settings.plain import SettingsErrors
from deployments.settings_files.load import parse_tenants

MODELS = {"m": {"runtime": "synthetic", "replicas": {"max": 4}}}
SCALING = {"models": MODELS}
TENANTS = {"tenants": {"tenants": {"acme": {"weight": 3}}}, "priorities": ["standard"]}


def publish(block: dict[str, Any]) -> None:
    publisher.publish(parse(block))


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found: dict[str, Any] = {}
    monkeypatch.setattr(store, "put", found.__setitem__)
    monkeypatch.setattr(cluster_store, "put", found.__setitem__)
    monkeypatch.setattr(cluster_store, "get", found.get)

    def publish(text: str, deployment: str) -> None:
        found["tenants"], found["digest"] = text, deployment

    monkeypatch.setattr(tenants_store, "publish_deployed", publish)
    monkeypatch.setattr(tenants_store, "fetch", lambda: found.get("tenants"))
    return found


def test_both_are_published_with_their_defaults(published: dict[str, Any]) -> None:
    publish({**TENANTS, "scaling": SCALING})
    (group,) = document.parse(published["scaling"]).settings.models["m"].groups
    assert (group.min, group.max) == (1, 4)
    assert "max_length: null" in published["tenants"]
    tenants = parse_tenants(published["tenants"], "published", TENANTS["priorities"])
    assert tenants.tenants["acme"].weight == 3


def test_adapters_by_hand_are_published_and_taken_back(published: dict[str, Any]) -> None:
    by_hand = {"m": {"law": "/law", "sql": None}}
    publish({**TENANTS, "scaling": SCALING, "adapters": by_hand})
    assert adapters_store.fetch() == by_hand
    publish({**TENANTS, "scaling": SCALING})
    assert adapters_store.fetch() == {}


def test_what_was_published_leaves_an_audit_line_and_a_restart_none(
    published: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[AuditLine] = []
    monkeypatch.setattr(publisher.audit, "record", lines.append)
    for _ in range(2):
        publish({**TENANTS, "scaling": SCALING})
    (line,) = lines
    assert (line.verb, line.object, line.outcome) == ("publish", "tenants", "done")
    assert line.before != line.after


def test_the_autoscaler_is_told_of_canaries_too_and_tenants_are_not_published_again(
    published: dict[str, Any],
) -> None:
    publish({**TENANTS, "scaling": SCALING})
    before = published["digest"]
    canary = {"m@canary": {"runtime": "synthetic", "replicas": {"count": 2}}}
    publish({**TENANTS, "scaling": SCALING, "versions": canary})
    (group,) = document.parse(published["scaling"]).settings.models["m@canary"].groups
    assert (group.min, group.max) == (2, 2)
    assert published["digest"] == before


def test_models_of_the_pool_are_published_with_it(published: dict[str, Any]) -> None:
    publish({"scaling": SCALING | {"scaling": {"pool": {"max": 2}}}})
    (pooled,) = document.parse(published["scaling"]).pool_models
    assert pooled.name == "m"


def test_a_change_of_scaling_publishes_no_tenants_anew(published: dict[str, Any]) -> None:
    """They would take back what an operator has published since."""
    publish({**TENANTS, "scaling": SCALING})
    digest = published["digest"]
    publish({**TENANTS, "scaling": SCALING | {"scaling": {"pool": {"max": 2}}}})
    assert published["digest"] == digest


def test_keys_that_are_gone_open_no_server_unless_that_is_said(published: dict[str, Any]) -> None:
    keyed = {"tenants": {"tenants": {"acme": {"keys": ["sha256:" + "a" * 64]}}}}
    publish({**TENANTS, **keyed, "scaling": SCALING})
    before = dict(published)
    pooled = {"scaling": SCALING | {"scaling": {"pool": {"max": 2}}}}
    with pytest.raises(SettingsErrors, match="no tenant has a list of keys any more"):
        publish({**TENANTS, **pooled})
    assert published == before
    publish({**TENANTS, "auth": "open", **pooled})
    assert "sha256:" not in published["tenants"]


def test_where_a_path_names_the_tenants_scaling_is_published_alone(published) -> None:
    publish({"scaling": SCALING})
    assert set(published) == {"scaling"}


def test_what_is_wrong_is_not_published_at_all(published: dict[str, Any]) -> None:
    with pytest.raises(SettingsErrors, match="tenants"):
        publish({**TENANTS, "tenants": {"tenants": 3}, "scaling": SCALING})
    with pytest.raises(SettingsErrors, match="models"):
        publish({**TENANTS, "scaling": {"models": 3}})
    assert published == {}


def _autoscaler(monkeypatch: pytest.MonkeyPatch, pin_there: Any) -> None:
    actor = SimpleNamespace(pin=SimpleNamespace(remote=pin_there))
    monkeypatch.setattr(actors, "running_autoscaler", lambda: actor)
    monkeypatch.setattr(ray, "get", lambda asked, timeout: asked)


def test_numbers_by_hand_are_handed_on_once_and_taken_back(monkeypatch) -> None:
    kept: dict[str, str] = {}
    told: list[tuple[str, str, int | None]] = []
    monkeypatch.setattr(store, "put", kept.__setitem__)
    monkeypatch.setattr(store, "get", kept.get)

    def pin_there(*target: Any) -> str:
        told.append(target)
        return ""

    _autoscaler(monkeypatch, pin_there)
    for pins in ({"m/": 3}, {"m/": 3}, {"m/": 3, "n/a": 1}, {"n/a": 1}):
        pin(parse({"pins": pins}))
    assert told == [("m", "", 3), ("n", "a", 1), ("m", "", None)]


def test_numbers_by_hand_are_handed_on_again_if_the_autoscaler_was_away(
    monkeypatch, caplog
) -> None:
    def nobody() -> Any:
        raise ValueError("Failed to look up actor")

    monkeypatch.setattr(actors, "running_autoscaler", nobody)
    kept: dict[str, str] = {}
    monkeypatch.setattr(store, "put", kept.__setitem__)
    monkeypatch.setattr(store, "get", kept.get)
    with pytest.raises(ClusterError, match="the autoscaler is away"):
        pin(parse({"pins": {"m/": 3}}))
    assert kept == {}
    _autoscaler(monkeypatch, lambda *target: "there is no model m")
    pin(parse({"pins": {"m/": 3}}))
    assert (caplog.messages, kept[store.PINS]) == (
        ["replicas of m/ by hand: there is no model m"], '{"m/": 3}'
    )  # fmt: skip
