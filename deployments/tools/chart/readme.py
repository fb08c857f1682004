"""Writes the chart's README: every value, its default, and its description.

Descriptions come from the schema, which has those of `values.yaml`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from deployments.tools.chart.settings_schema import SECTIONS

_INTRODUCTION = """# headrace

Headrace on Kubernetes. KubeRay 1.7 must be installed first. How to install both, upgrade,
partition GPUs and repair what goes wrong: [docs/kubernetes.md](../../docs/kubernetes.md).

`models`, `tenants`, `controllers`, `operators`, `scaling` and `gateway` are the sections of a
settings file ([docs/settings.md](../../docs/settings.md)):
`helm install NAME helm/headrace -f settings.yaml -f pods.yaml --set image.repository=…`, where
`pods.yaml` has the `workerGroups` that models run in.
To leave a value unset, leave it out; null is refused.

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
