"""Which demands on an answer's form are refused, and which part of them is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runtimes.vllm.structured_outputs import (
    ANTHROPIC,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_EXPRESSIONS,
    MAX_FREE,
    MAX_LENGTHS,
    MAX_SCHEMAS,
    Unsupported,
    check_json_schema,
    check_regex,
    check_request,
    check_response,
    check_structural_tag,
)

INTEGER = {"type": "integer"}
TEXT = {"type": "string", "maxLength": 96}
AB = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}}


def refusal(check: Any, *given: Any, **named: Any) -> str:
    with pytest.raises(Unsupported) as caught:
        check(*given, **named)
    return str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        True, {}, INTEGER, AB, {"type": ["integer", "null"], "minimum": 3},
        {"enum": [1, "a", None]}, {"type": "string", "enum": ["a"]}, {"const": {"a": 1}},
        {"anyOf": [INTEGER, {"type": "string", "maxLength": 3}]}, {"allOf": [INTEGER]},
        {"$defs": {"x": INTEGER}, "$ref": "#/$defs/x", "description": "why"},
        {"properties": {"a": {"items": TEXT}, "b": {"$ref": "#/properties/a/items"}}},
        {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}},
        {"properties": {"a": {}}, "required": ["a"], "additionalProperties": False},
        {"type": "array", "prefixItems": [INTEGER], "items": False, "minItems": 1},
        {"type": "string", "pattern": "^[a-z]{2,5}$"}, {"type": "string", "format": "date-time"},
        {"type": "object", "patternProperties": {"^x": INTEGER}},
        {"type": "integer", "minimum": 1, "exclusiveMaximum": 9, "title": "t", "x-mine": [1]},
        '{"type": "integer"}',
    ],
)  # fmt: skip
def test_what_a_grammar_holds_is_taken(schema: Any) -> None:
    check_json_schema("f", schema)


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"not": {}}, "f/not cannot"),
        ({"$ref": "#/x/a", "x": {"a": {"not": {}}}}, "f/$ref is '#/x/a', which is no schema"),
        ({"$ref": "#/default", "default": {"not": {}}}, "f/$ref is '#/default', which is no sc"),
        ({"$ref": "#/$defs", "$defs": {"not": {}}}, "f/$ref is '#/$defs', which is no schema"),
        ({"type": "integer", "minimum": 10**400}, "f/minimum must be a number that"),
        ({"type": "object", "properties": {"a": {"items": {"not": {}}}}}, "f/properties/a/items/n"),
        ({**AB, "if": {"required": ["a"]}, "then": {"required": ["b"]}}, "f/if cannot"),
        ({"oneOf": [INTEGER, {"type": "number"}]}, "f/oneOf cannot be enforced; use anyOf"),
        ({"allOf": [INTEGER, {"minimum": 3}]}, "f/allOf cannot"),
        ({"type": "integer", "multipleOf": 3}, "f/multipleOf cannot"),
        ({"type": "array", "uniqueItems": True}, "f/uniqueItems cannot"),
        ({"type": "array", "contains": INTEGER}, "f/contains cannot"),
        ({**AB, "dependentRequired": {"a": ["b"]}}, "f/dependentRequired cannot"),
        ({"$dynamicRef": "#x"}, "f/$dynamicRef cannot"),
        ({"anyOf": [{"not": {}}]}, "f/anyOf/0/not cannot"),
        ({**AB, "anyOf": [{"required": ["a"]}]}, "beside anyOf"),
        ({"$defs": {"x": INTEGER}, "$ref": "#/$defs/x", "minimum": 3}, "f/minimum cannot"),
        ({"enum": [1, 5], "minimum": 3}, "f/minimum cannot be enforced beside enum"),
        ({"type": "integer", "enum": [1, "a"]}, "f/enum has 'a', which is not of its type"),
        ({"type": "integer", "const": True}, "f/const has True"),
        ({"minimum": 3}, "f/minimum cannot be enforced without a type"),
        ({"required": ["a"]}, "f/required cannot be enforced without a type"),
        ({**AB, "required": ["c"]}, "f/required names 'c', which properties lacks"),
        ({"$ref": "http://a.example/x"}, "f/$ref is 'http://a.example/x', which is no schema"),
        ({"$ref": "#/$defs/none"}, "f/$ref is '#/$defs/none'"),
        ({"$ref": "#"}, "f/$ref leads to itself"),
        ({"type": "string", "pattern": "^(?!a)"}, "f/pattern has '(?!'"),
        ({"type": "string", "pattern": "a", "maxLength": 2}, "f/maxLength cannot"),
        ({"type": "string", "format": "credit-card"}, "f/format is 'credit-card'"),
        ({"type": "foo"}, "f/type must be of"),
        ({"type": []}, "f/type must be of"),
        ({"enum": []}, "f/enum must be a list of at least one"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "f/minimum is above maximum"),
        ({"type": "integer", "minimum": True}, "f/minimum must be a number"),
        ({"type": "string", "minLength": -1}, "f/minLength must be a whole number"),
        ({"type": "object", "properties": {"a/b": False}}, "f/properties/a~1b is false"),
        ({"type": "object", "properties": [1]}, "f/properties must be an object"),
        (3, "f is no schema"),
        ("{", "f is not JSON"),
    ],
)
def test_what_a_grammar_leaves_out_is_refused_by_its_place(schema: Any, part: str) -> None:
    assert part in refusal(check_json_schema, "f", schema)


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (lambda n: {"enum": ["x" * (n - len('{"enum": [""]}'))]}, MAX_BYTES),
        (lambda n: {"anyOf": [INTEGER] * (n - 1)}, MAX_SCHEMAS),
        (lambda n: {"anyOf": [{}] * n}, MAX_FREE),
        (lambda n: {"anyOf": [{"type": "object"}] * n}, MAX_FREE),
        (lambda n: {"anyOf": [{"type": "string", "pattern": "a"}] * n}, MAX_EXPRESSIONS),
        (lambda n: {"type": "string", "maxLength": n}, MAX_LENGTHS),
        (lambda n: {"anyOf": [{"type": "array", "maxItems": n - 96}, TEXT]}, MAX_LENGTHS),
        (
            lambda n: {"anyOf": [{"type": "string", "pattern": f"a{{1,{n - 96}}}"}, TEXT]},
            MAX_LENGTHS,
        ),
        (lambda n: _nested(n), MAX_DEPTH),
    ],
)
def test_a_schema_has_a_largest_size(make: Any, most: int) -> None:
    check_json_schema("f", make(most))
    assert str(most) in refusal(check_json_schema, "f", make(most + 1))


def _nested(levels: int) -> Any:
    schema: Any = INTEGER
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def test_what_schemas_of_one_request_hold_is_added_up() -> None:
    tag = {"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}] * (MAX_FREE + 1)}
    assert str(MAX_FREE) in refusal(check_structural_tag, "f", tag)


@pytest.mark.parametrize("text", ["[" * 20_000, '{"items":' * 3000 + "1" + "}" * 3000])
def test_any_depth_is_refused_and_nothing_overflows(text: str) -> None:
    assert refusal(check_json_schema, "f", text)
    assert refusal(check_structural_tag, "f", text)


@pytest.mark.parametrize(
    "pattern",
    ["foo*", "^a$", r"\d+\.\d", "[a^$]", r"\^\$", r"[\]^]b", "(?:a|b)", r"\\b", "a{2,3}?",
     "(?P<n>a)"],
)  # fmt: skip
def test_an_expression_that_a_grammar_holds_is_taken(pattern: str) -> None:
    check_regex("f", pattern)


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        ("(?=a)a", "'(?='"), ("a(?!b)", "'(?!'"), ("(?<=a)b", "'(?<='"), ("(?<!a)b", "'(?<!'"),
        (r"(a)\1", "'\\\\1'"), (r"a\b", "'\\\\b'"), ("(?i)a", "'(?i'"), ("a++", "'++'"),
        ("a{2}+", "'{2}+'"), ("(?>a)", "'(?>'"), ("a^", "'^'"), ("$a", "'$'"), (r"\pL", "'\\\\p'"),
    ],
)  # fmt: skip
def test_an_expression_that_a_grammar_reads_otherwise_is_refused(pattern: str, part: str) -> None:
    assert part in refusal(check_regex, "f", pattern)


@pytest.mark.parametrize("bounds", ["{4097}", "{4097,}", "{1,4097}", "{0,04097}", "{99999999999}"])
def test_a_repetition_counts_whichever_way_it_is_written(bounds: str) -> None:
    assert "add up to more" in refusal(check_regex, "f", f"a{bounds}")
    check_regex("f", "a" + bounds.replace("4097", "4096").replace("99999999999", "4096"))


def test_braces_and_digits_take_no_more_time_than_other_characters() -> None:
    """With quadratic time, these would take minutes."""
    for _ in range(100):
        check_regex("f", "{" + "1" * (MAX_BYTES - 1))


def test_schemas_and_expressions_within_structural_tags_are_looked_at() -> None:
    new = {
        "format": {"type": "tag", "content": {"type": "json_schema", "json_schema": {"not": {}}}}
    }
    assert "f/format/content/json_schema/not " in refusal(check_structural_tag, "f", new)
    old = {"structures": [{"begin": "<f>", "schema": {"not": {}}, "end": "</f>"}]}
    assert "f/structures/0/schema/not " in refusal(check_structural_tag, "f", old)
    pattern = {"format": {"type": "regex", "pattern": "(?=a)"}}
    assert "f/format/pattern has" in refusal(check_structural_tag, "f", pattern)


def asked(**fields: Any) -> Any:
    return SimpleNamespace(**{"response_format": None, "structured_outputs": None, **fields})


def tool(strict: bool | None = None) -> Any:
    schema = {"type": "object", "properties": {"a": {"not": {}}}}
    return SimpleNamespace(function=SimpleNamespace(parameters=schema, strict=strict))


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (asked(response_format=SimpleNamespace(type="json_schema", json_schema=SimpleNamespace(
            json_schema={"not": {}}))), "response_format"),
        (asked(structured_outputs=SimpleNamespace(json={"not": {}})), "structured_outputs"),
        (asked(structured_outputs=SimpleNamespace(regex="(?=a)")), "structured_outputs"),
        (asked(structured_outputs=SimpleNamespace(choice=["a" * MAX_BYTES])), "structured_outputs"),
        (asked(structured_outputs=SimpleNamespace(choice=[])), "structured_outputs"),
        (asked(structured_outputs=SimpleNamespace(grammar="a" * (MAX_BYTES + 1))),
         "structured_outputs"),
        (asked(structured_outputs=SimpleNamespace(structural_tag="{")), "structured_outputs"),
        (asked(tools=[tool(), tool(strict=True)], tool_choice="auto"), "tools"),
        (asked(tools=[tool()], tool_choice="required"), "tools"),
    ],
)  # fmt: skip
def test_the_field_at_fault_is_named(request_: Any, field: str) -> None:
    with pytest.raises(Unsupported) as caught:
        check_request(request_, tools_as_schema=True)
    assert caught.value.field == field


def test_a_tools_parameters_that_bind_nobody_may_be_anything() -> None:
    check_request(asked(tools=[tool()], tool_choice="auto"), tools_as_schema=True)
    check_request(asked(tools=[tool()], tool_choice="required"), tools_as_schema=False)
    check_request(asked(tools=None, tool_choice="none"), tools_as_schema=True)
    strict = asked(tools=[tool(), tool(strict=True)], tool_choice="auto")
    message = refusal(check_request, strict, tools_as_schema=False)
    assert message.startswith("tools[1].function.parameters/properties/a/not ")


def response(**fields: Any) -> Any:
    given = {"text": None, "structured_outputs": None, "tools": [], "tool_choice": "auto"}
    return SimpleNamespace(**given | fields)


def function(strict: bool = False) -> Any:
    parameters = {"type": "object", "properties": {"a": {"not": {}}}}
    return SimpleNamespace(type="function", name="f", parameters=parameters, strict=strict)


def test_a_response_is_refused_by_its_own_names() -> None:
    form = SimpleNamespace(type="json_schema", schema_={"not": {}})
    said = refusal(
        check_response, response(text=SimpleNamespace(format=form)), tools_as_schema=True
    )
    assert said.startswith("text.format.schema/not cannot")
    outputs = SimpleNamespace(regex="a(?=b)")
    said = refusal(check_response, response(structured_outputs=outputs), tools_as_schema=True)
    assert said.startswith("structured_outputs.regex")
    for tools, choice in (([function()], "required"), ([function(strict=True)], "auto")):
        asked = response(tools=tools, tool_choice=choice)
        said = refusal(check_response, asked, tools_as_schema=True)
        assert said.startswith("tools[0].parameters/properties/a/not")
    namespace = SimpleNamespace(type="namespace", name="n", tools=[function(strict=True)])
    assert refusal(check_response, response(tools=[namespace]), tools_as_schema=True)


def test_a_response_that_demands_nothing_odd_is_taken() -> None:
    text = SimpleNamespace(format=SimpleNamespace(type="text"))
    custom = SimpleNamespace(type="custom", name="c")
    for asked in (response(), response(text=text), response(tools=[function(), custom])):
        check_response(asked, tools_as_schema=True)


def test_a_message_is_refused_by_anthropics_names() -> None:
    tool = SimpleNamespace(function=function(strict=True))
    asked = SimpleNamespace(response_format=None, structured_outputs=None, tools=[tool])
    said = refusal(check_request, asked, tools_as_schema=True, names=ANTHROPIC)
    assert said.startswith("tools[0].input_schema/properties/a/not")
