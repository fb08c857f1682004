"""Can a grammar hold an answer to what a request demands of its form, and which part cannot?

A request may demand a JSON schema (`response_format`, `structured_outputs.json`, strict or forced
tools), a regular expression, choices, a grammar or a structural tag. xgrammar turns that into a
grammar, and leaves out in silence what it does not know: a `not`, a lookahead, whatever stands
beside an `anyOf`. Here such a part is refused by name, so that every answer keeps to all that its
request demands. Sizes are bounded, because the time to compile a grammar grows with them.

Keywords that JSON Schema does not define are annotations, as the specification says.
Source: JSON Schema 2020-12; what xgrammar 0.2.8 enforces, keyword by keyword, tried in
`tests/conformance/test_vllm_structured_outputs.py`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

# What a request's grammar may be made of. With a vocabulary of 128,000 tokens a processor takes
# 1.4 s for 400 optional properties (twice as many take four times as long), 0.2 s for each place
# that may hold any value, 0.04 s for an expression, and 2 s and 10 MB for lengths of 1,000 in all.
MAX_BYTES = 32 << 10  # of a schema, an expression, a grammar or a list of choices
MAX_DEPTH = 32  # schemas within schemas; OpenAI takes 10
MAX_SCHEMAS = 512  # counting each within another
MAX_FREE = 16  # of those, such as any value satisfies
MAX_EXPRESSIONS = 32
MAX_LENGTHS = 4096  # the largest bounds of texts, lists and repetitions, added up

_TYPES = {"string", "integer", "number", "boolean", "null", "array", "object"}
_FORMATS = {
    "email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri",
    "uri-reference", "uri-template", "json-pointer", "relative-json-pointer",
}  # fmt: skip
# What each keyword holds.
_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_SCHEMA = {
    "items", "additionalProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems",
}  # fmt: skip
_SCHEMA_LISTS = {"anyOf", "allOf", "prefixItems"}
_SCHEMA_MAPS = {"properties", "patternProperties", "$defs", "definitions"}
# The keywords that are enforced, by the type of what they speak of.
_OF_TYPE = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": _NUMBERS,
    "array": {"items", "prefixItems", "minItems", "maxItems", "unevaluatedItems"},
    "object": {
        "properties", "required", "additionalProperties", "minProperties", "maxProperties",
        "patternProperties", "propertyNames", "unevaluatedProperties",
    },
}  # fmt: skip
_TYPED = set().union(*_OF_TYPE.values())
# Each of these says by itself what a value may be; what stands beside it would not be enforced.
_WHOLE = ("$ref", "const", "enum", "anyOf", "allOf")
_REFUSED = {
    "not", "if", "then", "else", "multipleOf", "uniqueItems", "contains", "minContains",
    "maxContains", "dependentRequired", "dependentSchemas", "dependencies", "additionalItems",
    "$dynamicRef", "$recursiveRef", "oneOf", "disallow", "extends", "divisibleBy",
}  # fmt: skip
_INSTEAD = {"oneOf": "; use anyOf", "$dynamicRef": "; use $ref", "$recursiveRef": "; use $ref"}


class Unsupported(ValueError):
    """`where`: the field of the request, and the path within it."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where} {why}.")
        self.field = re.split(r"[\[./]", where, maxsplit=1)[0]


@dataclass(slots=True)
class _Counts:
    """Of all schemas of a request."""

    schemas: int = 0
    free: int = 0
    expressions: int = 0
    lengths: int = 0

    def add(
        self, where: str, *, schemas: int = 0, free: int = 0, lengths: int = 0, expressions: int = 0
    ) -> None:
        """Raises `Unsupported`."""
        self.schemas += schemas
        self.free += free
        self.lengths += lengths
        self.expressions += expressions
        for what, count, most in (
            ("schemas", self.schemas, MAX_SCHEMAS),
            ("places for any value", self.free, MAX_FREE),
            ("patterns", self.expressions, MAX_EXPRESSIONS),
        ):
            if count > most:
                raise Unsupported(where, f"is one of too many {what}; there may be {most} in all")
        if self.lengths > MAX_LENGTHS:
            raise Unsupported(where, f"makes all lengths add up to more than {MAX_LENGTHS}")


@dataclass(frozen=True, slots=True)
class _Root:
    """A schema of its own: references start at it."""

    where: str
    schema: Any
    counts: _Counts


@dataclass(frozen=True, slots=True)
class Names:
    """What an API calls the schema of an answer, and that of a tool's arguments."""

    form: str
    parameters: str


OPENAI = Names("response_format.json_schema.schema", "tools[{}].function.parameters")
ANTHROPIC = Names("output_config.format.schema", "tools[{}].input_schema")
RESPONSES = Names("text.format.schema", "tools[{}].parameters")


def check_request(asked: Any, *, tools_as_schema: bool, names: Names = OPENAI) -> None:
    """Raises `Unsupported`. `asked`: a chat or a completion, as vLLM parses it. `tools_as_schema`:
    arguments of a forced tool keep to its parameters even where it is not strict. Takes
    milliseconds."""
    counts = _Counts()
    form = asked.response_format
    if form is not None and form.type == "json_schema" and form.json_schema is not None:
        schema = form.json_schema.json_schema
        if schema is not None:
            check_json_schema(names.form, schema, counts)
    elif form is not None and form.type == "structural_tag":
        check_structural_tag("response_format", form.model_dump(by_alias=True), counts)
    _check_outputs(asked.structured_outputs, counts)
    tools = [getattr(tool, "function", None) for tool in getattr(asked, "tools", None) or ()]
    _check_tools(asked, tools, tools_as_schema, names, counts)


def check_response(asked: Any, *, tools_as_schema: bool) -> None:
    """As `check_request`, of a request for a response."""
    counts = _Counts()
    form = None if asked.text is None else asked.text.format
    if form is not None and form.type == "json_schema" and form.schema_ is not None:
        check_json_schema(RESPONSES.form, form.schema_, counts)
    _check_outputs(asked.structured_outputs, counts)
    for tool in asked.tools:
        if tool.type == "namespace":
            _check_tools(asked, tool.tools, tools_as_schema, RESPONSES, counts)
    _check_tools(asked, asked.tools, tools_as_schema, RESPONSES, counts)


def _check_outputs(outputs: Any, counts: _Counts) -> None:
    for name, check in (
        ("json", check_json_schema), ("regex", check_regex), ("choice", _check_choices),
        ("grammar", lambda where, text, _: check_size(where, text)),
        ("structural_tag", check_structural_tag),
    ):  # fmt: skip
        demanded = getattr(outputs, name, None)
        if demanded is not None:
            check(f"structured_outputs.{name}", demanded, counts)


def _check_tools(
    asked: Any, functions: Sequence[Any], as_schema: bool, names: Names, counts: _Counts
) -> None:
    forced = as_schema and getattr(asked, "tool_choice", None) not in (None, "none", "auto")
    for index, function in enumerate(functions):
        schema = getattr(function, "parameters", None)
        if schema is not None and (forced or getattr(function, "strict", None)):
            check_json_schema(names.parameters.format(index), schema, counts)


def check_json_schema(where: str, schema: Any, counts: _Counts | None = None) -> None:
    """Raises `Unsupported`. `schema`: as parsed, or as its text."""
    schema = _sized(where, schema)
    _check(_Root(where, schema, counts or _Counts()), schema, where, 0)


def check_regex(where: str, pattern: str, counts: _Counts | None = None) -> None:
    """Raises `Unsupported` for what a grammar leaves out of an expression. An expression is to
    match the whole text, so that `^` and `$` are allowed at its ends alone."""
    check_size(where, pattern)
    repeats = _REPETITION.findall(pattern)
    lengths = sum(max(int(f"0{bound[:_MAX_DIGITS]}") for bound in bounds) for bounds in repeats)
    (counts or _Counts()).add(where, expressions=1, lengths=lengths)
    for part, what in _odd_parts(pattern):
        raise Unsupported(where, f"has {part!r}: {what} cannot be enforced")


def _check_choices(where: str, choices: Sequence[str], counts: _Counts) -> None:
    _sized(where, list(choices))
    if not choices:
        raise Unsupported(where, "is empty; it must have at least one choice")


def check_structural_tag(where: str, tag: Any, counts: _Counts | None = None) -> None:
    """Raises `Unsupported`. `tag`: as parsed, or as its text. Looks at the schemas and expressions
    in it; the rest is the engine's to judge."""
    _check_tag(where, _sized(where, tag), counts or _Counts(), 0)


def check_size(where: str, text: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise Unsupported(where, f"has {size} bytes; it may have {MAX_BYTES}")


def _sized(where: str, value: Any) -> Any:
    """As parsed, of what is not too large. Raises `Unsupported`."""
    try:
        check_size(
            where, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        )
        return json.loads(value) if isinstance(value, str) else value
    except Unsupported:
        raise
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError as fault:
        raise Unsupported(where, f"is not JSON: {fault}") from None


def _too_deep(where: str) -> Unsupported:
    return Unsupported(where, f"is nested too deeply; it may have {MAX_DEPTH} levels")


def _check_tag(where: str, value: Any, counts: _Counts, depth: int) -> None:
    if depth > 4 * MAX_DEPTH:
        raise _too_deep(where)
    if isinstance(value, dict):
        for key, each in value.items():
            place = f"{where}/{_escaped(key)}"
            if key == "json_schema" or (key == "schema" and "begin" in value):
                _check(_Root(place, each, counts), each, place, 0)
            elif key == "pattern" and value.get("type") == "regex" and isinstance(each, str):
                check_regex(place, each, counts)
            else:
                _check_tag(place, each, counts, depth + 1)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            _check_tag(f"{where}/{index}", each, counts, depth + 1)


def _check(root: _Root, schema: Any, where: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _too_deep(where)
    if schema is True:
        root.counts.add(where, schemas=1, free=1)
        return
    if schema is False:
        raise Unsupported(where, "is false, which no value satisfies; leave out what may not be")
    if not isinstance(schema, dict):
        raise Unsupported(where, "is no schema; it must be an object")
    for key in sorted(_REFUSED & schema.keys()):
        raise Unsupported(f"{where}/{key}", f"cannot be enforced{_INSTEAD.get(key, '')}")
    _check_values(schema, where)
    _check_form(root, schema, where)
    # An object of which no property is declared holds any value as well.
    free = not any(key in schema for key in (*_WHOLE, "type", *_TYPED)) or (
        "object" in _types(schema) and "properties" not in schema
    )
    lengths = max(schema.get("minLength", 0), schema.get("maxLength", 0))
    lengths += max(schema.get("minItems", 0), schema.get("maxItems", 0))
    root.counts.add(where, schemas=1, free=free, lengths=lengths)
    for place, each in _schemas(schema, where):
        _check(root, each, place, depth + 1)


def _schemas(schema: dict[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    """Those directly in it, and where."""
    for key, value in schema.items():
        place = f"{where}/{_escaped(key)}"
        if key in _SCHEMA:
            # What nothing may be is the one use of false that is enforced.
            if value is not False or key == "propertyNames":
                yield place, value
        elif key in _SCHEMA_LISTS:
            for index, each in enumerate(value):
                yield f"{place}/{index}", each
        elif key in _SCHEMA_MAPS:
            for name, each in value.items():
                yield f"{place}/{_escaped(name)}", each


def _check_values(schema: dict[str, Any], where: str) -> None:
    """Whether each keyword has the kind of value that it must have."""
    for key, value in schema.items():
        wrong = _wrong_value(key, value)
        if wrong:
            raise Unsupported(f"{where}/{key}", f"must be {wrong}")
    for low, high in (
        ("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"),
        ("minimum", "maximum"),
    ):  # fmt: skip
        if low in schema and high in schema and schema[low] > schema[high]:
            raise Unsupported(f"{where}/{low}", f"is above {high}, so that no value satisfies it")


def _wrong_value(key: str, value: Any) -> str:
    """What it must be; "": nothing is wrong."""
    if key in _COUNTS:
        good = type(value) is int and 0 <= value <= MAX_LENGTHS
        return "" if good else f"a whole number from 0 to {MAX_LENGTHS}"
    if key in _NUMBERS:
        good = type(value) in (int, float) and abs(value) <= sys.float_info.max
        return "" if good else "a number that a float can hold"
    if key in _SCHEMA_LISTS or key == "enum":
        return "" if isinstance(value, list) and value else "a list of at least one"
    if key in _SCHEMA_MAPS:
        return "" if isinstance(value, dict) else "an object"
    if key in ("pattern", "format", "$ref"):
        return "" if isinstance(value, str) else "a string"
    if key == "required":
        good = isinstance(value, list) and all(isinstance(each, str) for each in value)
        return "" if good else "a list of names"
    if key == "type":
        types = value if isinstance(value, list) else [value]
        good = bool(types) and all(isinstance(t, str) and t in _TYPES for t in types)
        return "" if good else f"of {', '.join(sorted(_TYPES))}"
    return ""


def _check_form(root: _Root, schema: dict[str, Any], where: str) -> None:
    """Whether all that it demands is enforced: xgrammar reads the first of `_WHOLE` alone."""
    whole = next((key for key in _WHOLE if key in schema), None)
    if whole is None:
        _check_typed(root, schema, where)
        return
    beside = (_TYPED | set(_WHOLE)) & schema.keys() - {whole}
    if "type" in schema and whole not in ("const", "enum"):
        beside.add("type")
    for key in sorted(beside):
        raise Unsupported(f"{where}/{key}", f"cannot be enforced beside {whole}")
    if whole == "$ref":
        _check_reference(root, schema["$ref"], f"{where}/$ref")
    elif whole == "allOf" and len(schema["allOf"]) > 1:
        raise Unsupported(f"{where}/allOf", "cannot be enforced with more than one schema")
    elif "type" in schema:
        values = [schema["const"]] if whole == "const" else schema["enum"]
        for value in values:
            if not any(_is_of(value, each) for each in _types(schema)):
                raise Unsupported(f"{where}/{whole}", f"has {value!r}, which is not of its type")


def _check_typed(root: _Root, schema: dict[str, Any], where: str) -> None:
    types = set(_types(schema))
    if "integer" in types:
        types.add("number")
    if not types:
        types = _guessed(schema, where)
    demands = {key for each in types for key in _OF_TYPE.get(each, ())} & schema.keys()
    if "string" in types:
        _check_string(root, schema, where)
    if "object" in types:
        _check_object(root, schema, where)
    for key in sorted(demands & {"prefixItems"}):
        most, fewest = schema.get("maxItems"), len(schema[key])
        if most is not None and most < fewest:
            raise Unsupported(f"{where}/maxItems", "is below the number of prefixItems")


def _guessed(schema: dict[str, Any], where: str) -> set[str]:
    """What a schema without a type is read as: any value, unless it says what an object's or a
    list's parts are."""
    if {"properties", "additionalProperties"} & schema.keys():
        read = "object"
    elif {"items", "prefixItems"} & schema.keys():
        read = "array"
    else:
        read = ""
    for key in sorted(_TYPED & schema.keys()):
        if key not in _OF_TYPE.get(read, ()):
            raise Unsupported(f"{where}/{key}", "cannot be enforced without a type; say the type")
    return {read} if read else set()


def _check_string(root: _Root, schema: dict[str, Any], where: str) -> None:
    form = schema.get("format")
    if form is not None and form not in _FORMATS:
        known = ", ".join(sorted(_FORMATS))
        raise Unsupported(f"{where}/format", f"is {form!r}, which cannot be enforced; of {known}")
    if "pattern" in schema:
        check_regex(f"{where}/pattern", schema["pattern"], root.counts)
    for key in ("format", "minLength", "maxLength"):
        if "pattern" in schema and key in schema:
            raise Unsupported(f"{where}/{key}", "cannot be enforced beside pattern")
        if key != "format" and form is not None and key in schema:
            raise Unsupported(f"{where}/{key}", "cannot be enforced beside format")


def _check_object(root: _Root, schema: dict[str, Any], where: str) -> None:
    declared = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in declared:
            raise Unsupported(f"{where}/required", f"names {name!r}, which properties lacks")
    for key, others in (
        ("patternProperties", ("properties",)),
        ("propertyNames", ("properties", "patternProperties", "unevaluatedProperties")),
    ):
        for other in others:
            if key in schema and other in schema:
                raise Unsupported(f"{where}/{key}", f"cannot be enforced beside {other}")
    patterns = schema.get("patternProperties", {})
    if len(patterns) > 1:
        raise Unsupported(f"{where}/patternProperties", "cannot be enforced with more than one")
    for pattern in patterns:
        check_regex(f"{where}/patternProperties/{_escaped(pattern)}", pattern, root.counts)


def _check_reference(root: _Root, reference: str, where: str) -> None:
    """A reference must lead to a schema within the same one, and not only to itself."""
    seen = set()
    while True:
        if reference in seen:
            raise Unsupported(where, "leads to itself")
        seen.add(reference)
        target = _target(root.schema, reference)
        if not isinstance(target, dict | bool):
            raise Unsupported(where, f"is {reference!r}, which is no schema within {root.where}")
        following = target.get("$ref") if isinstance(target, dict) else None
        if not isinstance(following, str):
            return
        reference = following


def _target(schema: Any, reference: str) -> Any:
    """None: there is none, or none at a place where schemas are, so that nobody has checked it."""
    if reference == "#":
        return schema
    if not reference.startswith("#/"):
        return None
    among = False  # schemas by their names, and in none of them
    for part in reference[2:].split("/"):
        if not isinstance(schema, dict) or not (among or part in _SCHEMA | _SCHEMA_MAPS):
            return None
        among = not among and part in _SCHEMA_MAPS
        schema = schema.get(part)
    return None if among else schema


def _types(schema: dict[str, Any]) -> list[str]:
    given = schema.get("type", [])
    return given if isinstance(given, list) else [given]


def _is_of(value: Any, kind: str) -> bool:
    match value:
        case None:
            return kind == "null"
        case bool():
            return kind == "boolean"
        case int():
            return kind in ("integer", "number")
        case float():
            return kind == "number" or (kind == "integer" and value.is_integer())
        case str():
            return kind == "string"
        case list():
            return kind == "array"
    return kind == "object"


def _escaped(name: str) -> str:
    """As in a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


_ODD = (
    (re.compile(r"\(\?<?[=!]"), "a lookaround"),
    (re.compile(r"\(\?>"), "an atomic group"),
    (re.compile(r"\(\?[-a-zA-Z]"), "an inline flag"),
    (re.compile(r"(?:[*+?]|\{\d*(?:,\d*)?\})\+"), "a possessive quantifier"),
    (re.compile(r"\\[1-9]"), "a back reference"),
    (re.compile(r"\\k"), "a back reference"),
    (re.compile(r"\\[bBAZzG]"), "a boundary"),
    (re.compile(r"\\[pP]"), "a class of Unicode"),
)
_MAX_DIGITS = 100  # of a bound: more are cut off, and are too many all the same
_REPETITION = re.compile(r"\{(\d+)?(?:,(\d+)?)?\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


def _odd_parts(pattern: str) -> Iterator[tuple[str, str]]:
    """The parts that a grammar leaves out in silence or reads otherwise, and what they are."""
    at, end = 0, len(pattern)
    while at < end:
        for form, what in _ODD:
            found = form.match(pattern, at)
            if found and not (what == "an inline flag" and found[0] == "(?P"):
                yield found[0], what
        char = pattern[at]
        if char == "^" and at > 0:
            yield char, "a beginning within the expression"
        if char == "$" and at < end - 1:
            yield char, "an end within the expression"
        if char == "\\":
            at += 2
        elif char == "[":
            whole = _CLASS.match(pattern, at)
            at = whole.end() if whole else end
        else:
            at += 1
