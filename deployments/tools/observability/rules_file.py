"""Writes the alerts as a rule file of Prometheus; the chart's PrometheusRule contains the same.

Source: prometheus.io, "Alerting rules" and "Recording rules".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from deployments.tools.observability.alerts import rule_groups
from deployments.tools.observability.types import Alert, RecordedSeries, RuleGroup

RUNBOOK = "docs/alerts.md"


class _Dumper(yaml.SafeDumper):
    """Writes strings of several lines in YAML's block style, so that queries stay readable."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def rules_file(groups: Sequence[RuleGroup] = rule_groups()) -> str:
    return yaml.dump(rules(groups), Dumper=_Dumper, sort_keys=False, width=1000)


def rules(groups: Sequence[RuleGroup] = rule_groups()) -> dict[str, Any]:
    return {"groups": [_group(group) for group in groups]}


def annotations_of(alert: Alert) -> dict[str, str]:
    """The alert's annotations: summary, where to look, and its section of the runbook."""
    return {
        "summary": alert.summary,
        "description": alert.look_at,
        "runbook_url": f"{RUNBOOK}#{alert.name.lower()}",
    }


def _group(group: RuleGroup) -> dict[str, Any]:
    interval = {"interval": group.interval} if group.interval else {}
    return {"name": group.name, **interval, "rules": [_rule(rule) for rule in group.rules]}


def _rule(rule: RecordedSeries | Alert) -> dict[str, Any]:
    if isinstance(rule, RecordedSeries):
        return {"record": rule.name, "expr": rule.query}
    return {
        "alert": rule.name,
        "expr": rule.query,
        "for": rule.lasts,
        "labels": {"severity": str(rule.severity)},
        "annotations": annotations_of(rule),
    }
