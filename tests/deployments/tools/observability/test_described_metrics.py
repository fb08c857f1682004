"""Alerts and dashboards ask for metrics and labels that there are, and every alert is explained."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from deployments.gateway.telemetry.levels import GatewayLevels
from deployments.gateway.telemetry.metrics import GatewayMetrics
from deployments.gateway.tenancy.fair_thread_pool import TurnStatistics
from deployments.tools.observability.alerts import (
    alerts,
    annotations_of,
    counted_outcomes,
    rule_groups,
)
from deployments.tools.observability.dashboards import DASHBOARDS, dashboard_model
from deployments.tools.observability.promql import RecordedSeries
from tests.kube.prometheus import plain

DOCS = Path(__file__).parents[4] / "docs"
# What Prometheus adds to samples of a target.
OF_TARGETS = {"namespace", "pod", "job", "instance"}
# Of dcgm-exporter 4: etc/default-counters.csv, and the labels that it writes.
_OF_GPUS = {"gpu", "UUID", "device", "modelName", "Hostname", "GPU_I_ID", "GPU_I_PROFILE"}
DCGM = dict.fromkeys(
    ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"), _OF_GPUS
)
_SELECTED = re.compile(r"([a-zA-Z_:][\w:]*)\{([^{}]*)\}")
_METRIC = re.compile(r"\b(?:headrace_\w+|headrace:[\w:]+|DCGM_\w+)\b")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPED = re.compile(r"\bby \(([\w, ]*)\) \((.*)")
Labels = Mapping[str, set[str]]


@pytest.fixture(scope="module")
def known() -> Labels:
    """Labels by the name of a sample, as `/metrics` has them and as rules record them."""
    nothing = TurnStatistics(0, 0, 0, 0, 0, 0, 0.0)
    metrics = GatewayMetrics(
        "g", levels=lambda: GatewayLevels(preprocess=nothing, controller_ends=0)
    )
    found: dict[str, set[str]] = dict(DCGM)
    for family in metrics.collect():
        labels = set(family._labelnames) | OF_TARGETS
        if family.type == "histogram":
            found[f"{family.name}_bucket"] = labels | {"le"}
            found |= {f"{family.name}_sum": labels, f"{family.name}_count": labels}
        else:
            found[family.name + "_total" * (family.type == "counter")] = labels
    for rule in recorded():
        found[rule.name] = _labels_of(rule.query)
    return found


def recorded() -> Iterator[RecordedSeries]:
    for group in rule_groups():
        yield from (rule for rule in group.rules if isinstance(rule, RecordedSeries))


def queries() -> Iterator[tuple[str, str]]:
    for group in rule_groups():
        yield from ((rule.name, rule.query) for rule in group.rules)
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            yield from ((panel.title, plain(query.promql)) for query in panel.queries)


@pytest.mark.parametrize(("where", "query"), queries())
def test_a_query_names_metrics_and_labels_that_there_are(
    where: str, query: str, known: Labels
) -> None:
    names = set(_METRIC.findall(query))
    assert names <= known.keys(), where
    assert names, where
    for name, matchers in _SELECTED.findall(query):
        assert set(_MATCHER.findall(matchers)) <= known[name], (where, name)
    for labels, rest in _GROUPED.findall(query):
        summed = _METRIC.search(rest)
        assert summed is not None, where
        assert _split(labels) <= known[summed.group()], (where, summed.group())


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
def test_legends_and_variables_are_labels_of_the_answers(dashboard, known: Labels) -> None:
    for panel in dashboard.panels:
        for query in panel.queries:
            named = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
            by = [_split(labels) for labels in re.findall(r"by \(([\w, ]+)\)", query.promql)]
            there = known[query.promql.split(" ")[0]] if not by else set().union(*by)
            assert named <= there, (panel.title, query.legend)
    for variable in dashboard.variables:
        assert variable.name in known[variable.metric]


def test_panels_have_places_of_their_own_and_names_of_their_own() -> None:
    for dashboard in DASHBOARDS:
        panels = dashboard_model(dashboard)["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        squares = [
            (x, y)
            for each in (panel["gridPos"] for panel in panels)
            for x in range(each["x"], each["x"] + each["w"])
            for y in range(each["y"], each["y"] + each["h"])
        ]
        assert len(set(squares)) == len(squares)
        assert max(x for x, _ in squares) < 24
        assert len({panel.title for panel in dashboard.panels}) == len(dashboard.panels)


def test_every_alert_is_explained_where_its_runbook_says_and_no_other_is() -> None:
    text = (DOCS / "alerts.md").read_text()
    sections = re.findall(r"^## (\w+)\n\n\*(\w+)\.\*", text, re.MULTILINE)
    assert sections == [(alert.name, str(alert.severity)) for alert in alerts()]
    for alert in alerts():
        assert annotations_of(alert)["runbook_url"] == f"docs/alerts.md#{alert.name.lower()}"


def test_an_alert_says_what_and_where_to_look() -> None:
    for alert in alerts():
        assert alert.summary[-1] == alert.look_at[-1] == "."
        assert len(alert.summary) < 150, alert.name


def test_what_counts_against_a_promise_is_the_servers_doing() -> None:
    assert counted_outcomes() == (
        "ok", "error", "expired", "failed", "lost", "not_finite", "not_ready", "shed",
    )  # fmt: skip


def _labels_of(query: str) -> set[str]:
    found = re.search(r"by \(([\w, ]+)\)", query)
    assert found is not None, query
    return _split(found[1])


def _split(labels: str) -> set[str]:
    return {label.strip() for label in labels.split(",") if label.strip()}
