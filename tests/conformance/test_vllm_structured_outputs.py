"""xgrammar's grammar of a schema or an expression that is taken holds nothing that breaks it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from runtimes import catalog
from runtimes.vllm.structured_outputs import Unsupported, check_json_schema, check_regex

MISSING = catalog.available("vllm", "generate")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]

VALUES: list[Any] = [
    None, True, 0, 1, 2, 3, 5, 10, -1, 1.5, 2.5, "", "a", "ab", "abc", "1", "2024-01-01", [], [1],
    [1, 1], [1, "a"], [1, 2, 3], ["a"], [None], {}, {"a": 1}, {"a": "x"}, {"b": 1},
    {"a": 1, "b": 1}, {"a": 1, "b": "x"}, {"a": 1, "c": 2}, {"ab": 1}, {"c": 1}, {"a": None},
    {"a": {"a": 1}}, [[1]],
    {"a": [1]}, {"a": 3},
]  # fmt: skip

_small = st.integers(0, 3)
_names = st.sampled_from(["a", "b", "c"])
_type = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])


def _keywords(inner: Any) -> Any:
    schemas = st.lists(inner, min_size=1, max_size=2)
    named = st.dictionaries(_names, inner, max_size=2)
    keywords = {
        "type": _type | st.lists(_type, min_size=1, max_size=2, unique=True),
        "properties": named, "required": st.lists(_names, max_size=2, unique=True),
        "additionalProperties": inner, "patternProperties": st.just({"^a": True}) | named,
        "propertyNames": inner, "minProperties": _small, "maxProperties": _small,
        "unevaluatedProperties": inner, "unevaluatedItems": inner,
        "items": inner, "prefixItems": schemas, "minItems": _small, "maxItems": _small,
        "uniqueItems": st.booleans(), "contains": inner, "minLength": _small, "maxLength": _small,
        "pattern": st.sampled_from(["^a", "b$", "^[a-c]{1,2}$", "(?!a)", r"\d"]),
        "format": st.sampled_from(["date", "email", "other"]),
        "minimum": _small, "maximum": _small, "exclusiveMinimum": _small,
        "exclusiveMaximum": _small, "multipleOf": st.integers(1, 3),
        "enum": st.lists(st.sampled_from(VALUES[:20]), max_size=3),
        "const": st.sampled_from(VALUES[:20]),
        "anyOf": schemas, "oneOf": schemas, "allOf": schemas, "not": inner, "if": inner,
        "then": inner, "dependentRequired": st.just({"a": ["b"]}),
        "$ref": st.sampled_from(["#", "#/properties/a", "#/$defs/a", "http://a.example/b"]),
        "$defs": named, "title": st.just("t"), "x-mine": st.just(1),
    }  # fmt: skip
    # Mostly few: all together would seldom be taken.
    return st.sets(st.sampled_from(sorted(keywords)), max_size=4).flatmap(
        lambda chosen: st.fixed_dictionaries({key: keywords[key] for key in sorted(chosen)})
    )


SCHEMAS = st.recursive(
    st.booleans() | st.just({}) | _keywords(st.just({})), _keywords, max_leaves=6
)


def _accepted(grammar: Any, text: str) -> bool:
    from xgrammar.testing import _is_grammar_accept_string

    return bool(_is_grammar_accept_string(grammar, text))


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS)
def test_an_answer_keeps_to_all_of_a_schema_that_is_taken(schema: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    import xgrammar

    try:
        check_json_schema("f", schema)
    except Unsupported:
        assume(False)
    try:
        grammar = xgrammar.Grammar.from_json_schema(json.dumps(schema))
        accepted = [value for value in VALUES if _accepted(grammar, json.dumps(value))]
    except RuntimeError:
        return  # refused as well, with 400
    checker = jsonschema.Draft202012Validator(schema)
    assert [value for value in accepted if not checker.is_valid(value)] == []


_PARTS = st.sampled_from(
    ["a", "b", "[ab]", "[^a]", "a*", "b+", "(ab)?", "(a|b)", "^", "$", r"\d", r"\b", "(?=a)",
     "(?!b)", r"\1", "a{1,2}", "b*?", "a++", r"\^", "[$^]", "(?i)", r"\w", ".", "(?:ab)"]
)  # fmt: skip


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(_PARTS, min_size=1, max_size=4).map("".join))
def test_an_answer_keeps_to_an_expression_that_is_taken(pattern: str) -> None:
    import xgrammar

    try:
        check_regex("f", pattern)
        known = re.compile(pattern)
        grammar = xgrammar.Grammar.from_regex(pattern)
    except (Unsupported, RuntimeError, re.error):
        assume(False)
    texts = ["", "a", "b", "ab", "aa", "aab", "ba", "abb", "1", "^", "$", "1a", "a1", "A", "abab"]
    accepted = [text for text in texts if _accepted(grammar, text)]
    assert [text for text in accepted if not known.fullmatch(text)] == []
