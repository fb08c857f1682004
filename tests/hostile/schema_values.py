"""Values that a JSON Schema of `/openapi.json` describes, as hypothesis draws them.

Of JSON Schema only what that document uses; names and types that the models of a test know are
drawn often, so that some requests get beyond the first check. `check` says whether a value fits.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from jsonschema import Draft202012Validator

KNOWN = ("device", "encoder", "shout", "ids", "types", "text", "INT64", "BYTES", "FP32", "sum")
_MOST = 3  # members of what has no bound
_DEEP = 5
Schema = dict[str, Any]
_LEAVES = (
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats(-1e3, 1e3) | st.sampled_from(KNOWN)
)


def values(schema: Schema, document: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Such as the schema allows, but for what it says of lengths and patterns of text."""
    if "$ref" in schema:
        return st.deferred(lambda: values(_named(schema["$ref"], document), document, depth + 1))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    for several in ("anyOf", "oneOf"):
        if several in schema and "type" not in schema:
            return st.one_of([values(each, document, depth) for each in schema[several]])
    kinds = schema.get("type", "anything")
    return st.one_of(
        [
            _of_kind(kind, schema, document, depth)
            for kind in ([kinds] if isinstance(kinds, str) else kinds)
        ]
    )


def _of_kind(kind: str, schema: Schema, document: Any, depth: int) -> st.SearchStrategy[Any]:
    low = schema.get("minimum", schema.get("exclusiveMinimum", -3))
    high = max(low, min(schema.get("maximum", 300), 300))
    simple: dict[str, st.SearchStrategy[Any]] = {
        "null": st.none(), "boolean": st.booleans(), "integer": st.integers(low, high),
        "number": st.floats(low, high), "string": st.sampled_from(KNOWN) | st.text(max_size=6),
    }  # fmt: skip
    if kind == "array":
        item = values(schema.get("items") or {}, document, depth + 1) if depth < _DEEP else _LEAVES
        least = schema.get("minItems", 0)
        return st.lists(item, min_size=least, max_size=min(schema.get("maxItems", _MOST), _MOST))
    if kind == "object":
        return _objects(schema, document, depth)
    return simple.get(kind, _LEAVES)


def _objects(schema: Schema, document: Any, depth: int) -> st.SearchStrategy[Any]:
    members = {
        name: values(each, document, depth + 1) if depth < _DEEP else _LEAVES
        for name, each in schema.get("properties", {}).items()
    }
    either = [choice["required"] for choice in schema.get("oneOf", [{}]) if "required" in choice]
    wanted = [{*schema.get("required", ()), *more} for more in either or [()]]
    return st.one_of(
        [
            st.fixed_dictionaries(
                {name: members.get(name, _LEAVES) for name in must},
                optional={
                    name: each
                    for name, each in members.items()
                    if name not in must and not any(name in other for other in either)
                },
            )
            for must in wanted
        ]
    )


def _named(reference: str, document: Any) -> Schema:
    found = document
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


def resolved(node: Schema, document: Any) -> Schema:
    return _named(node["$ref"], document) if "$ref" in node else node


def check(schema: Schema, document: Any, value: Any) -> None:
    """Raises jsonschema's ValidationError."""
    Draft202012Validator({**schema, "components": document["components"]}).validate(value)
