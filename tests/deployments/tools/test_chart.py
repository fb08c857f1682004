"""The chart's generated files are what the settings and its values make of them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from deployments.tools.chart import (
    CHART,
    SECTIONS,
    comments,
    generated,
    settings_schema,
    values_schema,
)

VALUES = (CHART / "values.yaml").read_text()
_MOST_LINES = 3_000


made, schema_of, of_settings = cache(generated), cache(values_schema), cache(settings_schema)


@pytest.mark.parametrize("path", made(), ids=str)
def test_a_generated_file_is_up_to_date(path: Path) -> None:
    assert (CHART / path).read_text() == made()[path], "python -m deployments.tools.chart"


def test_what_is_written_by_hand_stays_readable_and_the_rest_is_marked() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in CHART.parent.rglob("*")
             if path.is_file()}  # fmt: skip
    by_hand = {path: n for path, n in lines.items() if path not in {CHART / p for p in made()}}
    assert sum(by_hand.values()) < _MOST_LINES
    marks = (CHART.parents[1] / ".gitattributes").read_text()
    for path in made():
        stem = str(Path("helm", "headrace", path))
        marked = stem if "dashboards" not in stem else "helm/headrace/files/dashboards/*.json"
        assert f"{marked} linguist-generated\n" in marks


def test_every_value_is_described_and_no_name_is_unknown() -> None:
    assert list(_undescribed(schema_of(VALUES), ())) == []


def _undescribed(schema: dict[str, Any], path: tuple[str, ...]) -> Any:
    for name, each in schema.get("properties", {}).items():
        if "properties" in each:
            assert each["additionalProperties"] is False, (*path, name)
            yield from _undescribed(each, (*path, name))
        elif "description" not in each:
            yield ".".join((*path, name))
    for name, each in schema.get("$defs", {}).items():
        if name in ("Affinity", "PodTemplate"):
            continue  # Kubernetes describes it
        yield from _undescribed(each, (name,))


def test_defaults_are_what_the_schema_takes() -> None:
    jsonschema.Draft202012Validator(schema_of(VALUES)).validate(yaml.safe_load(VALUES))


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("image.repository", True), ("head.cpu", True), ("auth.enabled", True),
        ("image.tag", False), ("podMonitors.enabled", False), ("env", False), ("runAsUser", False),
    ],
)  # fmt: skip
def test_null_is_refused_where_the_default_is_not_empty(path: str, refused: bool) -> None:
    """Helm drops a value that is null; the chart's README says when it may be."""
    values = yaml.safe_load(VALUES)
    *above, last = path.split(".")
    section = values
    for name in above:
        section = section[name]
    del section[last]
    assert jsonschema.Draft202012Validator(schema_of(VALUES)).is_valid(values) is not refused


def test_every_default_of_the_schema_stands_in_the_values() -> None:
    """So that a reader of values.yaml sees all there is."""
    values = yaml.safe_load(VALUES)
    for name, each in schema_of(VALUES)["properties"].items():
        if name in SECTIONS or name == "global":
            continue
        assert name in values, name
        assert each.get("properties", {}).keys() == (
            values[name].keys() if "properties" in each else set()
        ), name


SETTINGS: list[tuple[dict[str, Any], bool]] = [
    ({"models": {"m": {"runtime": "synthetic"}}}, True),
    ({"models": {"m": {"runtime": "synthetic", "hedge": {"mode": "off"}}}}, True),
    ({"models": {"m": {"runtime": "synthetic", "hedge": {"mode": False}}}}, True),
    ({"models": {"m": {"runtime": "synthetic", "hedge": {"mode": True}}}}, False),
    ({"models": {"m": {"runtime": "synthetic", "options": {"anything": [1]}}}}, True),
    ({"models": {"m": {"runtime": "synthetic", "slo": {"latency_ms": 5}}}}, True),
    ({"models": {"m": {"runtime": "synthetic", "slo": {"latency_ms": 0}}}}, False),
    ({"models": {"m": {"runtime": "synthetic", "slo": {"timeout_ms": None}}}}, False),
    ({"models": {"m": {"runtime": "synthetic", "batch": None}}}, False),
    (
        {"models": {"m": {"runtime": "torch", "source": "m", "image": {"size": 224, "mean": 0.5}}}},
        True,
    ),
    ({"models": {"m": {"runtime": "torch", "source": "m", "image": {"size": [64, "1x2"]}}}}, True),
    ({"models": {"m_": {"runtime": "synthetic"}}}, False),
    ({"models": {"m": {}}}, False),
    ({"tenants": {"a": {"keys": ["sha256:" + "a" * 64]}}}, True),
    ({"tenants": {"a": {"models": "all"}}}, False),
    ({"gateway": {"labels": {"zone": "a"}, "priorities": ["now", "later"]}}, True),
    ({"gateway": {"hosts": "a"}}, False),
    ({"scaling": {"pool": {}}}, True),
    ({"scaling": {"pool": {"models": "all", "min": 0, "resources": {"mig_3g": 1}}}}, True),
    ({"scaling": {"pool": {"models": ["m"]}, "budget": {"gpus": 0}}}, True),
    ({"scaling": {"pool": {"models": "m"}}}, False),
    ({"scaling": {"pool": {"max": 0}}}, False),
    ({"scaling": {"pools": {}}}, False),
    ({"models": {"m": {"runtime": "synthetic", "replicas": {"min": 0, "max": 2}}}}, True),
    ({"models": {"m": {"runtime": "synthetic", "replicas": {"min": -1}}}}, False),
    ({"models": {"m": {"runtime": "synthetic", "scaling": {"policy": {"knee": 1}}}}}, True),
    ({"models": {"m": {"runtime": "synthetic", "scaling": {"policy": 3}}}}, False),
]


@pytest.mark.parametrize(("given", "taken"), SETTINGS)
def test_the_schema_takes_what_the_settings_take(given: dict[str, Any], taken: bool) -> None:
    sections, definitions = of_settings()
    schema = {"properties": sections, "$defs": definitions}
    assert jsonschema.Draft202012Validator(schema).is_valid(given) is taken


def test_comments_are_found_by_the_path_of_their_key() -> None:
    text = """a:
  # -- First,
  # and more.
  b: 1
  # no comment of ours
  c:
    # -- Third.
    d: {}
# -- Last.
e: []
"""
    assert comments(text) == {
        ("a", "b"): "First, and more.", ("a", "c", "d"): "Third.", ("e",): "Last.",
    }  # fmt: skip


def test_files_of_defaults_are_complete() -> None:
    environment = json.loads(generated()[Path("files/environment.json")])
    assert environment["RAY_SERVE_ENABLE_HA_PROXY"] == {"value": "1", "in_config": True}
    assert environment["RAY_worker_niceness"]["in_config"] is False
