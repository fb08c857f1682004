"""Every value of the chart's own is set by one of its value sets, to something else than its
default, and changes what is rendered there."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import yaml

from deployments.tools.chart import SECTIONS, values_schema
from tests.kube.chart import (
    CHART,
    Values,
    cluster_of,
    objects,
    rendered,
    value_sets,
    values_of_set,
)
from tests.kube.verdict import complaints

_TEXT = (CHART / "values.yaml").read_text()
DEFAULTS = yaml.safe_load(_TEXT)
ValuePath = tuple[str, ...]
# Restricted pod security refuses a folder of the node, so it is in none of the sets, and neither is
# what needs one; below, and in test_prewarm.py.
_OF_HOST_PATHS = {
    ("cache", "hostPath"), ("prewarm", "artifacts"), ("prewarm", "cpu"), ("prewarm", "memory"),
}  # fmt: skip


def test_every_value_of_a_worker_group_is_set_by_a_value_set() -> None:
    groups = [g for each in value_sets().values() for g in each.values["workerGroups"]]
    known = values_schema(_TEXT)["$defs"]["workerGroup"]["properties"]
    assert known.keys() - {name for group in groups for name in group} == set()


def test_every_value_is_set_by_a_value_set() -> None:
    missing = set(_leaves(values_schema(_TEXT), ())) - set(_setting()) - _OF_HOST_PATHS
    assert {".".join(path) for path in missing} == set()


def test_every_value_changes_what_is_rendered() -> None:
    unheard = {
        ".".join(path)
        for path, sets in _setting().items()
        if not any(_heard(path, values) for values in sets)
    }
    assert unheard == set()


def test_a_cache_in_a_folder_of_the_node_is_not_for_restricted_namespaces(plain: Values) -> None:
    values = plain | {"cache": {"type": "hostPath", "hostPath": "/srv/headrace"}}
    found = objects(values)
    said = complaints(found, values, None)
    assert len(said) == 4, "the head, the gateways and two groups"
    assert all("volume cache is a hostPath" in each for each in said)
    volumes = cluster_of(found)["headGroupSpec"]["template"]["spec"]["volumes"]
    assert {"path": "/srv/headrace", "type": "DirectoryOrCreate"} in [
        each.get("hostPath") for each in volumes
    ]


def _setting() -> dict[ValuePath, list[Values]]:
    """Which value sets say each value, and not its default."""
    found: dict[ValuePath, list[Values]] = {}
    leaves = list(_leaves(values_schema(_TEXT), ()))
    for name in value_sets():
        values = values_of_set(name)
        for leaf in leaves:
            said = _at(values, leaf)
            if said is not None and said != _at(DEFAULTS, leaf):
                found.setdefault(leaf, []).append(values)
    return found


def _leaves(schema: dict[str, Any], path: ValuePath) -> Iterator[ValuePath]:
    for name, each in schema["properties"].items():
        if not path and (name in SECTIONS or name == "global"):
            continue
        if "properties" in each:
            yield from _leaves(each, (*path, name))
        else:
            yield (*path, name)


def _at(values: Any, path: ValuePath) -> Any:
    for name in path:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _heard(path: ValuePath, values: Values) -> bool:
    """Whether the objects, or the notes, would be others without it."""
    without = copy.deepcopy(values)
    section = _at(without, path[:-1])
    del section[path[-1]]
    try:
        return json.dumps(rendered(without)) != json.dumps(rendered(values))
    except _refused():
        return True


def _refused() -> type[Exception]:
    import helm_python

    error: type[Exception] = helm_python.HelmError
    return error
