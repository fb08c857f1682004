"""What the chart makes of the alerts and dashboards: the same files, wrapped."""

from __future__ import annotations

import json

import pytest
import yaml

from deployments.tools.observability.alerts import rules
from deployments.tools.observability.dashboards import DASHBOARDS, dashboard_model
from tests.kube.chart import Values, objects

ON = {"observability": {"rules": {"enabled": True}, "dashboards": {"enabled": True}}}
_MAX_BYTES = 2**20  # of an object in the API server's store


def test_neither_is_made_unless_asked_for(plain: Values) -> None:
    kinds = [each["kind"] for each in objects(plain)]
    assert "PrometheusRule" not in kinds
    assert not [each for each in objects(plain) if "dashboard" in str(each["metadata"]["labels"])]


def test_the_rule_holds_the_alerts_as_they_are(plain: Values) -> None:
    (rule,) = [each for each in objects(plain | ON) if each["kind"] == "PrometheusRule"]
    assert rule["spec"] == rules()


@pytest.mark.parametrize(
    ("gateway", "is_open"),
    [
        ({}, False),
        ({"haproxy_admin_host": "127.0.0.2"}, False),
        ({"haproxy_admin_host": "::1"}, False),
        ({"haproxy_admin_host": "0.0.0.0"}, True),
    ],
)
def test_scrapers_reach_haproxys_metrics_only_where_they_leave_its_node(
    plain: Values, gateway: Values, is_open: bool
) -> None:
    found = objects(plain | {"gateway": plain.get("gateway", {}) | gateway})
    (policy,) = [each for each in found if each["metadata"]["name"] == "demo-headrace-scrapers"]
    (rule,) = policy["spec"]["ingress"]
    assert (9101 in {each["port"] for each in rule["ports"]}) is is_open


def test_runbooks_are_where_the_values_say(plain: Values) -> None:
    place = "https://wiki.example.com/alerts"
    changed = {"observability": {"rules": {"enabled": True, "runbook": place}}}
    (rule,) = [each for each in objects(plain | changed) if each["kind"] == "PrometheusRule"]
    assert yaml.safe_dump(rule["spec"]) == yaml.safe_dump(rules()).replace("docs/alerts.md", place)


def test_grafanas_sidecar_finds_each_dashboard_as_it_is(plain: Values) -> None:
    found = [
        each
        for each in objects(plain | ON)
        if each["metadata"]["labels"].get("grafana_dashboard") == "1"
    ]
    texts = {name: text for each in found for name, text in each["data"].items()}
    assert {name: json.loads(text) for name, text in texts.items()} == {
        f"{dashboard.name}.json": dashboard_model(dashboard) for dashboard in DASHBOARDS
    }
    assert all(len(json.dumps(each)) < _MAX_BYTES for each in found)
