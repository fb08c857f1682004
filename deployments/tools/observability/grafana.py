"""Writes a dashboard as the JSON that Grafana's sidecar or its provisioning reads from a file.

A row has three panels. The data source is a variable of the dashboard, so that the file fits any
Grafana with a Prometheus. Source: Grafana's dashboard JSON model, schema version 39 (Grafana 11).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from deployments.tools.observability.dashboards import BY_TENANT, WAR_ROOM
from deployments.tools.observability.promql import Dashboard, Panel, Variable

DASHBOARDS = (WAR_ROOM, BY_TENANT)
_SCHEMA = 39
_WIDE, _HIGH, _ACROSS = 8, 8, 3
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
Json = dict[str, Any]


def dashboard_json(dashboard: Dashboard) -> str:
    return json.dumps(dashboard_model(dashboard), indent=2) + "\n"


def dashboard_model(dashboard: Dashboard) -> Json:
    return {
        "uid": dashboard.name,
        "title": dashboard.title,
        "description": dashboard.says,
        "tags": ["headrace"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_datasource(), *map(_variable, dashboard.variables)]},
        "panels": list(_panels(dashboard)),
    }


def _datasource() -> Json:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
    }


def _variable(variable: Variable) -> Json:
    query = f"label_values({variable.metric}, {variable.name})"
    return {
        "name": variable.name,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels(dashboard: Dashboard) -> Iterator[Json]:
    top = number = 0
    for row in dashboard.rows:
        number += 1
        place = {"x": 0, "y": top, "w": _WIDE * _ACROSS, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "gridPos": place, "panels": []}
        for at, panel in enumerate(row.panels):
            number += 1
            line, column = divmod(at, _ACROSS)
            place = {"x": column * _WIDE, "y": top + 1 + line * _HIGH, "w": _WIDE, "h": _HIGH}
            yield _panel(number, panel, place)
        top += 1 + _HIGH * -(-len(row.panels) // _ACROSS)


def _panel(number: int, panel: Panel, place: Json) -> Json:
    note = f" Empty where {panel.may_be_empty}." if panel.may_be_empty else ""
    drawn: Json = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 0, "showPoints": "never"}
    if panel.stacked:
        drawn |= {"fillOpacity": 30, "stacking": {"mode": "normal", "group": "A"}}
    bounds: Json = {"min": 0}
    if panel.logarithmic:
        drawn |= {"scaleDistribution": {"type": "log", "log": 10}}
        bounds = {}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.says + note,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, **bounds, "custom": drawn},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": query.promql,
                "legendFormat": query.legend,
            }
            for place, query in enumerate(panel.queries)
        ],
    }
