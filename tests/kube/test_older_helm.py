"""Values are also checked as Helm up to 3.17 does it, with gojsonschema 1.2.0.

It knows drafts 4 to 7 of JSON Schema, ignores what stands beside a `$ref`, and refuses an `enum`
that has an item twice. Newer Helms, 4 among them, check with another library, which the other tests
here run in Helm's own engine. Draft 6 has the same rules here; gojsonschema itself took all value
sets of 2026-11-28, too (docs/kubernetes.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema

from tests.kube.chart import CHART, Values, merged, value_sets, values_of_set
from tests.kube.test_planted_faults import SLIPS

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
OLDER = jsonschema.Draft6Validator
# What a newer draft brought, and an older engine passes over: nothing may depend on it.
NEWER = {
    "dependentRequired", "dependentSchemas", "maxContains", "minContains", "prefixItems",
    "unevaluatedItems", "unevaluatedProperties",
}  # fmt: skip


def test_the_schema_is_one_and_no_enum_has_an_item_twice() -> None:
    OLDER.check_schema(SCHEMA)
    enums = [each for name, each in _keywords(SCHEMA) if name == "enum"]
    assert [False, "off"] in [sorted(each, key=str)[:2] for each in enums if False in each]
    texts = [[json.dumps(item) for item in each] for each in enums]
    assert [each for each in texts if len(set(each)) < len(each)] == []


def test_nothing_is_said_in_words_that_it_does_not_know() -> None:
    assert {name for name, _ in _keywords(SCHEMA)} & NEWER == set()


def test_every_value_set_is_taken() -> None:
    checker = OLDER(SCHEMA)
    said = {
        name: [error.message for error in checker.iter_errors(merged(values_of_set(name)))]
        for name in value_sets()
    }
    assert {name: errors for name, errors in said.items() if errors} == {}


def test_what_newer_ones_refuse_is_refused(plain: Values) -> None:
    """null takes a default away, as Helm does it."""
    checker = OLDER(SCHEMA)
    assert checker.is_valid(merged(plain))
    taken = [slip for slip, _ in SLIPS if checker.is_valid(merged(plain | slip))]
    assert taken == []


def _keywords(schema: Any) -> Iterator[tuple[str, Any]]:
    """Every name of every mapping in it, and what it has."""
    if isinstance(schema, list):
        for each in schema:
            yield from _keywords(each)
    elif isinstance(schema, dict):
        for name, each in schema.items():
            yield name, each
            yield from _keywords(each)
