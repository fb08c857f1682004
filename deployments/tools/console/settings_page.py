"""Writes `docs/settings.md`, the page of all settings, from the settings' own classes.

`python -m deployments.tools.console.settings_page` rewrites the page. A test compares the page with
the classes, so that it stays current. Backends' options are not fields of these classes, so the
page does not have them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from deployments.settings.capacity import CapacitySettings
from deployments.settings.gateway import GatewaySettings
from deployments.settings.model import ModelSettings
from deployments.settings.tenant import TenantSettings
from deployments.settings.tree import ControllerSettings, OperatorSettings, Settings
from yaml_document.section import Section
from yaml_document.shape import expected, fields_below, is_section, place_of

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"
_INTRODUCTION = """# Settings

One YAML file describes models, tenants and the gateway. `headrace check FILE` explains what is
wrong with one; `examples/` has some to start from. Only `models` is required, and in each model
its `runtime` and (except for `synthetic`) its `source`.

This page is written by `python -m deployments.tools.console.settings_page` from
`deployments/settings/`.
"""
# The settings that most files set, in the order in which one meets them.
_FIRST = (
    "models.<name>.runtime",
    "models.<name>.source",
    "models.<name>.task",
    "models.<name>.slo.latency_ms",
    "models.<name>.lengths.max",
    "models.<name>.batch.max_size",
    "models.<name>.replicas.count",
    "tenants.<name>.weight",
    "tenants.<name>.keys",
    "gateway.port",
)
_CHAPTERS: tuple[tuple[str, str, type[Section]], ...] = (
    ("models.&lt;name&gt;", "models", ModelSettings),
    ("tenants.&lt;name&gt;", "tenants", TenantSettings),
    ("controllers", "controllers", ControllerSettings),
    ("operators", "operators", OperatorSettings),
    ("gateway", "gateway", GatewaySettings),
    ("scaling", "scaling", CapacitySettings),
)


def page() -> str:
    first = "## The ten that most files set\n\nAll others have defaults that suit most models.\n\n"
    parts = [_INTRODUCTION, first + _table(_first_rows())]
    for title, name, section in _CHAPTERS:
        parts.append(
            f"## {title}\n\n{Settings.model_fields[name].description}\n\n"
            f"{_table(fields_below(section))}"
        )
    return "\n".join(parts)


def _first_rows() -> Iterator[tuple[str, FieldInfo]]:
    chapters = {name: dict(fields_below(section)) for _, name, section in _CHAPTERS}
    for path in _FIRST:
        chapter, _, name = path.replace(".<name>", "").partition(".")
        yield path, chapters[chapter][name]


def _table(fields: Iterable[tuple[str, FieldInfo]]) -> str:
    rows = ["| setting | value | default | what it is |", "|---|---|---|---|"]
    for name, field in fields:
        cells = (f"`{name}`", _value(field), _default(field), _cell(field.description or ""))
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _value(field: FieldInfo) -> str:
    place = place_of(field)
    return "section" if is_section(place.kind) else _cell(expected(place))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is PydanticUndefined:
        # A section or mapping, made by a factory; a section's fields have defaults of their own.
        return ""
    return _shown(field.default)


def _shown(value: Any) -> str:
    if value is None:
        return "unset"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
