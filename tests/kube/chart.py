"""The chart through Helm's own engine (PyPI's `helm-python-sdk`): values in, objects out.

Imported lazily, because `make unit` collects these tests in an environment that may lack it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "headrace"
RELEASE, NAMESPACE = "demo", "serving"
SECTIONS = ("models", "tenants", "controllers", "operators", "scaling", "gateway")

Values = dict[str, Any]
Object = dict[str, Any]
# In C, where PyYAML was built with it: reading what is rendered took longer than rendering it.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class ValueSet:
    """Values that a user might give, and what must come of them.

    renders: what objects, pods or applications have at least. none: kinds of which there is no
    object."""

    name: str
    about: str
    values: Values
    renders: tuple[Object, ...] = ()
    none: tuple[str, ...] = ()


@cache
def value_sets() -> Mapping[str, ValueSet]:
    """The chart's own examples, one a platform, and those of `tests/kube/value_sets`. Not to be
    changed: `values_of_set` has a copy. Read without Helm, which may be missing where tests are
    only collected."""
    found = {path.stem: _platform(path) for path in sorted((CHART / "ci").glob("*.yaml"))}
    for path in sorted((Path(__file__).parent / "value_sets").glob("*.yaml")):
        for name, each in yaml.load(path.read_text(), LOADER).items():
            wrong = misspelt(each)
            assert not wrong, f"{path.name}: {name} has {wrong}"
            if "values" in each:
                assert name not in found, name
                base = found[each["base"]].values if "base" in each else {}
                found[name] = ValueSet(name, each["about"], laid_over(base, each["values"]))
            must = (tuple(each.get("renders", ())), tuple(each.get("none", ())))
            found[name] = replace(found[name], renders=must[0], none=must[1])
    return found


def misspelt(written: Values) -> set[str]:
    """Names in a set of `tests/kube/value_sets` that say nothing, and those that it lacks."""
    found = written.keys() - {"about", "base", "values", "renders", "none"}
    for each in written.get("renders") or [{}]:
        found |= each.keys() - {"kind", "pod", "application", "has", "lacks"}
        found |= {"has"} - each.keys()
        if len(each.keys() & {"kind", "pod", "application"}) != 1:
            found.add("kind, pod or application")
    return found


def values_of_set(name: str) -> Values:
    return copy.deepcopy(value_sets()[name].values)


def _platform(path: Path) -> ValueSet:
    text = path.read_text()
    about = text.splitlines()[0]
    assert about.startswith("# "), f"{path.name} does not say what it is"
    return ValueSet(path.stem, about, yaml.load(text, LOADER))


def laid_over(base: Values, values: Values) -> Values:
    """As Helm takes a second `-f`: mappings are merged, everything else is replaced."""
    found = dict(base)
    for key, value in values.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        found[key] = laid_over(base[key], value) if both else value
    return found


@cache
def loaded(chart: Path = CHART) -> Any:
    import helm_python

    return helm_python.Chart.load(chart)


def values_of(text: str) -> Values:
    """A values file as Helm reads it."""
    import helm_python

    found: Values = helm_python.values_from_yaml(text)
    return found


def merged(values: Values) -> Values:
    """With the chart's defaults."""
    found: Values = loaded().merge_values(values)
    return found


def rendered(values: Values, name: str = RELEASE) -> dict[str, str]:
    """Texts by the template that they come from. Raises helm_python.HelmError."""
    return dict(_rendered(json.dumps(values), name))


@lru_cache(maxsize=128)  # tests of one value set follow each other; nothing in the chart is random
def _rendered(values: str, name: str) -> dict[str, str]:
    found: dict[str, str] = loaded().render(json.loads(values), name=name, namespace=NAMESPACE)
    return {path.removeprefix("headrace/templates/"): text for path, text in found.items()}


def objects(values: Values, name: str = RELEASE) -> list[Object]:
    """Every object of a release, hooks and tests included."""
    texts = rendered(values, name)
    return [
        each
        for path, text in texts.items()
        if path != "NOTES.txt"
        for each in yaml.load_all(text, LOADER)
        if each
    ]


def ray_service(found: list[Object]) -> Object:
    (service,) = [each for each in found if each["kind"] == "RayService"]
    return service


def cluster_of(found: list[Object]) -> Object:
    cluster: Object = ray_service(found)["spec"]["rayClusterConfig"]
    return cluster


def serve_config_of(found: list[Object]) -> Object:
    """As KubeRay sends it to Serve."""
    config: Object = yaml.load(ray_service(found)["spec"]["serveConfigV2"], LOADER)
    return config


def settings_of(values: Values) -> Values:
    """A settings file of the values, which are the chart's defaults and the user's."""
    return {name: each for name, each in merged(values).items() if name in SECTIONS}
