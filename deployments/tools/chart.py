"""Writes the Helm chart's generated files: `python -m deployments.tools.chart`.

Go templates cannot read the settings' defaults or the table of Ray's environment variables, so both
are stored as data beside the templates. So are alerts and dashboards, for users who have a
Prometheus and a Grafana of their own; the schema of all values, made from the settings' classes and
from the comments of `values.yaml`; and the chart's README. A test compares the stored files with
newly generated ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from deployments.control.ray_env import HARD_STOP_S, EnvLayer, variables
from deployments.control.serve_config import DEREGISTER_S, GRACE_S, REPLICA_HEALTH_S
from deployments.settings import model_fields
from deployments.settings import tenant as tenant_section
from deployments.settings.capacity import PoolSettings
from deployments.settings.gateway import GatewaySettings, GrpcSettings
from deployments.settings.model_fields import TIMEOUT_MS
from deployments.settings.replicas import ReplicaSettings
from deployments.settings.tree import Settings
from deployments.tools.observability.alerts import rules_file
from deployments.tools.observability.dashboards import DASHBOARDS, dashboard_json

SECTIONS = ("models", "tenants", "controllers", "operators", "scaling", "gateway")
CHARTS = Path(__file__).parents[2] / "helm"
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
    own: dict[str, Any] = _expanded(yaml.safe_load(_OWN_SCHEMA.read_text()))
    sections, definitions = settings_schema()
    own["properties"] |= sections
    own.setdefault("$defs", {}).update(definitions)
    for path, text in comments(values).items():
        if path[0] not in sections:
            _at(own, path)["description"] = text
    _require(own, yaml.safe_load(values))
    return own


def _expanded(schema: Any) -> Any:
    """In JSON Schema's words what it has none for: `only`, the properties of a mapping with no
    others, and `fields`, such properties of which nothing more is said."""
    if isinstance(schema, list):
        return [_expanded(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    whole = {name: _expanded(each) for name, each in schema.items()}
    if "fields" not in whole and "only" not in whole:
        return whole
    properties: dict[str, Any] = {name: {} for name in whole.pop("fields", ())}
    properties |= whole.pop("only", {}) | whole.get("properties", {})
    return whole | {"type": "object", "additionalProperties": False, "properties": properties}


def _require(schema: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Makes each value required whose default is not empty.

    A user's `name:` without a value is null, and Helm then drops the default that templates read.
    A value whose default is empty may stay so, and so may one that may be null. Of mappings, only
    those whose keys the schema names are required.
    """
    needed = set(schema.get("required", ()))
    for name, default in defaults.items():
        each = schema["properties"][name]
        if "properties" in each and default:
            _require(each, default)
            needed.add(name)
        elif "null" in each.get("type", ""):
            continue
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
        "grpc": GrpcSettings().model_dump(mode="json"),
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


# ---- the settings' schema -----------------------------------------------------------------------

_NAMES = {"models": model_fields.NAME, "tenants": tenant_section.NAME}
_DROPPED = ("title", "default", "examples")


def settings_schema() -> tuple[dict[str, Any], dict[str, Any]]:
    """Schemas of the sections by name, and the definitions that they refer to."""
    whole = Settings.model_json_schema(mode="validation")
    sections = {name: _plain(whole["properties"][name]) for name in SECTIONS}
    for name, pattern in _NAMES.items():
        each = sections[name].pop("additionalProperties")
        sections[name] |= {
            "patternProperties": {f"^({pattern})$": each},
            "additionalProperties": False,
        }
    return sections, {name: _plain(each) for name, each in whole["$defs"].items()}


def _plain(schema: Any, names_fields: bool = False) -> Any:
    """The schema without the keywords of `_DROPPED` and without null.

    `names_fields`: the mapping's keys are names of fields, not keywords, so all are kept.
    """
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        name: _plain(each, name in ("properties", "$defs") and not names_fields)
        for name, each in schema.items()
        if names_fields or name not in _DROPPED
    }
    return kept if names_fields else _with_off(_without_null(kept))


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    choices = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if not choices:
        return schema
    rest = {name: value for name, value in schema.items() if name != "anyOf"}
    return {**rest, **choices[0]} if len(choices) == 1 else {**rest, "anyOf": choices}


def _with_off(schema: dict[str, Any]) -> dict[str, Any]:
    """Permits false beside the word `off`: YAML reads a bare `off` as false, and the settings take
    false for the word."""
    if "off" not in schema.get("enum", ()):
        return schema
    without_type = {name: value for name, value in schema.items() if name != "type"}
    words = [each for each in schema["enum"] if each is not False]
    return without_type | {"enum": [*words, False]}


# ---- descriptions of values ---------------------------------------------------------------------

_KEY = re.compile(r"(?P<indent> *)(?P<name>[A-Za-z][\w.-]*):(?: |$)")
_BEGIN = "# --"

ValuePath = tuple[str, ...]


def comments(values: str) -> dict[ValuePath, str]:
    """Descriptions by the path of their key, in the file's order. `values`: the file's text. As in
    helm-docs, a description begins with `# --` and ends at the key that it stands above."""
    return dict(_commented(values.splitlines()))


def _commented(lines: list[str]) -> Iterator[tuple[ValuePath, str]]:
    above: list[str] = []
    path: list[tuple[int, str]] = []
    for line in lines:
        text = line.strip()
        if text.startswith(_BEGIN):
            above = [text.removeprefix(_BEGIN).strip()]
        elif text.startswith("#") and above:
            above.append(text.removeprefix("#").strip())
        elif found := _KEY.match(line):
            depth = len(found["indent"])
            path = [*(each for each in path if each[0] < depth), (depth, found["name"])]
            if above:
                yield tuple(name for _, name in path), " ".join(above)
            above = []
        else:
            above = []


# ---- the README ---------------------------------------------------------------------------------

_INTRODUCTION = """# headrace

Headrace on Kubernetes. KubeRay 1.7 must be installed first. How to install both, upgrade
and repair what goes wrong: [docs/kubernetes.md](../../docs/kubernetes.md), with a page for GKE,
EKS, AKS, OpenShift, k3s, Argo CD, air-gapped clusters and MIG. Values of each are in `ci/`.

`models`, `tenants`, `controllers`, `operators`, `scaling` and `gateway` are the sections of a
settings file ([docs/settings.md](../../docs/settings.md)):
`helm install NAME helm/headrace -f settings.yaml -f pods.yaml --set image.repository=…`, where
`pods.yaml` has the `workerGroups` that models run in.
To leave a value unset, leave it out. null does the same where the default is empty, and is
refused where it is a number, a text or true; only `runAsUser` may be null then.

This page is written by `python -m deployments.tools.chart` from `values.yaml` and
`../values-schema.yaml`.
"""
_HEAD = ["| value | default | what it is |", "|---|---|---|"]


def readme(values: str, schema: Mapping[str, Any]) -> str:
    defaults = yaml.safe_load(values)
    own = {name: each for name, each in schema["properties"].items() if name not in SECTIONS}
    rows = [row for name, each in own.items() for row in _rows(name, each, defaults.get(name))]
    parts = [_INTRODUCTION, "## Values\n", "\n".join([*_HEAD, *rows]) + "\n"]
    for name, definition in schema["$defs"].items():
        if name[0].islower():
            parts += [f"## {definition['description']}\n", _items(definition)]
    return "\n".join(parts)


def _rows(path: str, schema: Mapping[str, Any], default: Any) -> Iterator[str]:
    below = schema.get("properties")
    if below is None or not isinstance(default, dict):
        yield f"| `{path}` | {_shown(default)} | {_cell(schema.get('description', ''))} |"
        return
    if "description" in schema:
        yield f"| `{path}` | | {_cell(schema['description'])} |"
    for name, each in below.items():
        yield from _rows(f"{path}.{name}", each, default.get(name))


def _items(definition: Mapping[str, Any]) -> str:
    rows = [
        f"| `{name}` | {'required' if name in definition.get('required', ()) else ''} | "
        f"{_cell(each.get('description', ''))} |"
        for name, each in definition["properties"].items()
    ]
    return "\n".join(["| value | | what it is |", "|---|---|---|", *rows]) + "\n"


def _shown(default: Any) -> str:
    return "" if default is None else f"`{json.dumps(default)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    for path, text in generated().items():
        (CHART / path).parent.mkdir(exist_ok=True)
        (CHART / path).write_text(text)
        print(path)
