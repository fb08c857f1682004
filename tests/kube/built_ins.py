"""Kubernetes' own objects against its schemas (PyPI's `kubernetes-validate`), strict: a field that
is not there is a mistake, and so is a kind that is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema

from tests.kube.chart import Object

VERSIONS = ("1.31", "1.34", "1.37")


def complaints(each: Object, versions: tuple[str, ...] = VERSIONS) -> Iterator[str]:
    for version in versions:
        try:
            validator = _validator(version, each["apiVersion"], each["kind"])
        except LookupError as error:
            yield str(error)
            continue
        for error in validator.iter_errors(each):
            yield f"{version}: {error.json_path}: {error.message[:300]}"


def definition(version: str, name: str) -> Any:
    """The schema of a part of objects."""
    return _schema(version, "_definitions")["$defs"][name]


@cache
def _validator(version: str, api_version: str, kind: str) -> Any:
    """Raises LookupError for what that version does not know."""
    from referencing import Registry, Resource

    group = api_version.split("/")
    name = "-".join([kind.lower(), group[0].split(".")[0], *group[1:]])
    try:
        schema = _schema(version, name)
    except FileNotFoundError:
        raise LookupError(f"Kubernetes {version} has no {api_version} {kind}") from None
    registry: Any = Resource.from_contents(schema) @ Registry()
    registry = Resource.from_contents(_schema(version, "_definitions")) @ registry
    return jsonschema.Draft202012Validator(schema, registry=registry)


@cache
def _schema(version: str, name: str) -> Any:
    from kubernetes_validate import utils

    folder = f"kubernetes-json-schema/v{version}.0-local-strict"
    return utils.schema_contents(f"{folder}/{name}.json", version)
