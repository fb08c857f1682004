"""Custom resources against the OpenAPI schemas of the real CRDs, as strict as `kubectl --validate`.

Where the CRDs lie: $HEADRACE_CRDS, or `shared/kube/crds` beside the repository. They are not part
of it. Without them `found` is None, and tests that need it are skipped. What is not looked at:
rules in CEL (`x-kubernetes-validations`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tests.kube.chart import LOADER, ROOT, Object

PLACE = "HEADRACE_CRDS"
_INT_OR_STRING = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
_BOUNDS = {
    "int32": {"minimum": -(2**31), "maximum": 2**31 - 1},
    "int64": {"minimum": -(2**63), "maximum": 2**63 - 1},
}
_DROPPED = ("description", "default", "format", "properties", "items", "additionalProperties")


def folder() -> Path | None:
    place = Path(os.environ.get(PLACE) or ROOT.parent / "shared" / "kube" / "crds")
    return place if any(place.glob("*.yaml")) else None


@cache
def found() -> Crds | None:
    place = folder()
    return None if place is None else Crds(place)


class Crds:
    """Validators by apiVersion and kind."""

    def __init__(self, place: Path) -> None:
        self._schemas = {
            (f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"]): version
            for path in sorted(place.glob("*.yaml"))
            for crd in yaml.load_all(path.read_text(), LOADER)
            for version in crd["spec"]["versions"]
            if version["served"]
        }
        self._validators: dict[tuple[str, str], Any] = {}

    def knows(self, each: Object) -> bool:
        return (each["apiVersion"], each["kind"]) in self._schemas

    def complaints(self, each: Object) -> Iterator[str]:
        kind = each["apiVersion"], each["kind"]
        if kind not in self._validators:
            schema = self._schemas[kind]["schema"]["openAPIV3Schema"]
            self._validators[kind] = _VALIDATOR(_json_schema(schema, root=True))
        for error in self._validators[kind].iter_errors(each):
            yield f"{error.json_path}: {error.message[:300]}"


def _json_schema(schema: Any, root: bool = False) -> dict[str, Any]:
    """A structural schema as JSON Schema: fields that it does not name are refused."""
    found = {n: v for n, v in schema.items() if n not in _DROPPED}
    if schema.get("x-kubernetes-int-or-string"):
        found |= _INT_OR_STRING
    found |= _BOUNDS.get(schema.get("format", ""), {})
    if "items" in schema:
        found["items"] = _json_schema(schema["items"])
    if "properties" in schema:
        found["properties"] = {n: _json_schema(v) for n, v in schema["properties"].items()}
    if root:
        found["properties"]["metadata"] = {"type": "object"}
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        found["additionalProperties"] = _json_schema(more)
    elif "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found["additionalProperties"] = False
    return _nullable(found) if schema.get("nullable") else found


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _unique_by_keys(_: Any, keys: list[str], value: Any, __: Any) -> Iterator[Any]:
    """A list that is a map by these keys has each once."""
    if not isinstance(value, list):
        return
    seen = set()
    for each in value:
        own = tuple(str(each.get(key)) for key in keys) if isinstance(each, dict) else (str(each),)
        if own in seen:
            yield jsonschema.ValidationError(f"{', '.join(own)} stands there twice")
        seen.add(own)


_VALIDATOR = jsonschema.validators.extend(
    jsonschema.Draft202012Validator, {"x-kubernetes-list-map-keys": _unique_by_keys}
)
