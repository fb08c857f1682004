"""Generates files of the Helm chart from the settings, the chart's values, alerts and dashboards.

Go templates cannot read the settings' defaults or the table of Ray's environment variables, so both
are stored as data beside the templates. Alerts and dashboards are stored too, for users who have a
Prometheus and a Grafana of their own. A test compares the stored files with newly generated ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from deployments.control.ray_env import HARD_STOP_S, EnvLayer, variables
from deployments.control.serve_config import DEREGISTER_S, GRACE_S, REPLICA_HEALTH_S
from deployments.settings.capacity import PoolSettings
from deployments.settings.gateway import GatewaySettings
from deployments.settings.model_fields import TIMEOUT_MS
from deployments.settings.replicas import ReplicaSettings
from deployments.tools.chart.readme import readme
from deployments.tools.chart.settings_schema import settings_schema
from deployments.tools.chart.values_comments import comments
from deployments.tools.observability.grafana import DASHBOARDS, dashboard_json
from deployments.tools.observability.rules_file import rules_file

CHARTS = Path(__file__).parents[3] / "helm"
CHART = CHARTS / "headrace"
_OWN_SCHEMA = CHARTS / "values-schema.yaml"


def generated() -> dict[Path, str]:
    """The content of each generated file, by its path below the chart's folder."""
    values = (CHART / "values.yaml").read_text()
    schema = values_schema(values)
    return {
        Path("values.schema.json"): _json(schema),
        Path("files/defaults.json"): _json(_defaults()),
        Path("files/environment.json"): _json(_environment()),
        Path("README.md"): readme(values, schema),
        Path("files/alerts.yaml"): rules_file(),
        **{
            Path("files/dashboards", f"{dashboard.name}.json"): dashboard_json(dashboard)
            for dashboard in DASHBOARDS
        },
    }


def values_schema(values: str) -> dict[str, Any]:
    """The JSON Schema of all values, from the text of `values.yaml`, whose comments describe the
    chart's own values."""
    own: dict[str, Any] = yaml.safe_load(_OWN_SCHEMA.read_text())
    sections, definitions = settings_schema()
    own["properties"] |= sections
    own.setdefault("$defs", {}).update(definitions)
    for path, text in comments(values).items():
        if path[0] not in sections:
            _at(own, path)["description"] = text
    _require(own, yaml.safe_load(values))
    return own


def _require(schema: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Makes each value required whose default is not empty.

    A user's `name:` without a value is null, and Helm then drops the default that templates read.
    A value whose default is empty may stay so. Of mappings, only those whose keys the schema names
    are required.
    """
    needed = set(schema.get("required", ()))
    for name, default in defaults.items():
        each = schema["properties"][name]
        if "properties" in each and default:
            _require(each, default)
            needed.add(name)
        elif default and not isinstance(default, dict | list):
            needed.add(name)
    schema["required"] = sorted(needed)


def _at(schema: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The schema of the value at `path`.

    Raises LookupError if the schema has a `$ref` on the way, or (as KeyError) no such value.
    """
    for name in path:
        if "$ref" in schema:
            raise LookupError(f"{'.'.join(path)}: describe it in values-schema.yaml, at its $ref")
        schema = schema["properties"][name]
    return schema


def _defaults() -> dict[str, Any]:
    return {
        "gateway": GatewaySettings().model_dump(mode="json"),
        "replicas": ReplicaSettings().model_dump(mode="json"),
        "pool": PoolSettings().model_dump(mode="json"),
        "generate_timeout_ms": TIMEOUT_MS,
        "hard_stop_s": HARD_STOP_S,
        "grace_s": GRACE_S,
        "deregister_s": DEREGISTER_S,
        "replica_health_s": REPLICA_HEALTH_S,
    }


def _environment() -> dict[str, Any]:
    """Environment variables that an image may set, by name."""
    return {
        each.name: {"value": each.value, "in_config": each.in_config}
        for each in variables(GatewaySettings())
        if each.layer is EnvLayer.IMAGE
    }


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, sort_keys=False) + "\n"
