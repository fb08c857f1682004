"""The settings file's sections as JSON Schema, for the chart's `values.schema.json`.

The schema is made from the settings' own classes, so that Helm refuses what `headrace check`
refuses, as far as JSON Schema can express it: unknown names, types, ranges, permitted words. Rules
between fields are left to the check that the chart runs before an installation. No value may be
null, since Helm drops a value that is null.
"""

from __future__ import annotations

from typing import Any

from deployments.settings import model_fields
from deployments.settings import tenant as tenant_section
from deployments.settings.tree import Settings

SECTIONS = ("models", "tenants", "controllers", "operators", "scaling", "gateway")
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
    return without_type | {"enum": [*schema["enum"], False]}
