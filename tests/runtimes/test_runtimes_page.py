"""The manual's page lists every option there is, with its default, and every precision."""

from __future__ import annotations

import importlib
import json
from dataclasses import fields
from pathlib import Path

import pytest

from runtimes import catalog
from runtimes.graph.options import GraphOptions

PAGE = Path(__file__).parents[2] / "docs/runtimes.md"


def chapters() -> dict[str, dict[str, str]]:
    """By the runtimes named above a table: its options with their defaults, as written."""
    found: dict[str, dict[str, str]] = {}
    title = ""
    for line in PAGE.read_text(encoding="utf-8").split("## Options")[1].splitlines():
        if line.startswith("## "):
            break
        if line.startswith("| `"):
            name, default = (cell.strip(" `") for cell in line.split("|")[1:3])
            found.setdefault(title, {})[name] = default
        elif line.startswith("`"):
            title = line.split("`")[1] if "and" not in line.split("(")[0] else "both"
            title += " that generates" if "task `generate`" in line else ""
    return found


def declared(cls: type, without: type | None = None) -> dict[str, str]:
    inherited = {field.name for field in fields(without)} if without else set()
    return {
        field.name: _written(field.default) for field in fields(cls) if field.name not in inherited
    }


def _written(value: object) -> str:
    if value is None:
        return "unset"
    if isinstance(value, tuple):
        value = list(value)
    return value if isinstance(value, str) else json.dumps(value)


def options_class(entry: catalog.BackendEntry) -> type:
    cls: type = getattr(importlib.import_module(entry.module), f"{entry.prefix}Options")
    return cls


def test_shared_options_are_listed_with_their_defaults():
    assert chapters()["both"] == declared(GraphOptions)


@pytest.mark.parametrize("runtime", catalog.names())
def test_own_options_are_listed_with_their_defaults(runtime):
    cls = options_class(catalog.ENTRIES[runtime])
    own = declared(cls, GraphOptions if issubclass(cls, GraphOptions) else None)
    assert chapters()[runtime] == own


@pytest.mark.parametrize("runtime", catalog.names("generate"))
def test_options_of_those_that_generate_are_listed_with_their_defaults(runtime):
    own = declared(options_class(catalog.STREAMS[runtime]))
    assert chapters()[f"{runtime} that generates"] == own


@pytest.mark.parametrize("runtime", {**catalog.ENTRIES, **catalog.STREAMS})
def test_precisions_are_listed(runtime):
    (line,) = (row for row in PAGE.read_text().splitlines() if row.startswith(f"| `{runtime}` |"))
    stated = line.split("|")[3]
    entry = catalog.ENTRIES.get(runtime) or catalog.STREAMS[runtime]
    assert all(precision in stated for precision in entry.precisions)
