"""YAML comes out as plain data with the line of every path, or with what is wrong with it."""

from __future__ import annotations

import pytest

from yaml_document.document import DEEPEST, MAX_NODES, read_document


def sentences(text: str) -> list[str]:
    return [str(each) for each in read_document(text, "f").mistakes]


def test_every_path_has_its_line() -> None:
    document = read_document("a:\n  b: 1\n  c:\n    - x\n    - y: 2\n", "f")
    assert document.data == {"a": {"b": 1, "c": ["x", {"y": 2}]}}
    assert document.mistakes == []
    assert [document.line_of(path) for path in [(), ("a",), ("a", "b"), ("a", "c", 1, "y")]] == [
        1,
        1,
        2,
        5,
    ]


def test_absent_path_is_told_at_what_is_around_it() -> None:
    document = read_document("a:\n  b: 1\n", "f")
    assert document.line_of(("a", "zzz", 3)) == 1
    assert document.mistake(("a", "l", 3, "x"), "no").path == "a.l[3].x"


def test_repeated_name_is_refused_with_both_lines() -> None:
    assert sentences("a: 1\nb: 2\na: 3\n") == [
        "f:3: a: is set twice, on lines 1 and 3; must be set once"
    ]
    assert sentences("x:\n  a: 1\n  'a': 3\n") == [
        "f:3: x.a: is set twice, on lines 2 and 3; must be set once"
    ]


def test_aliases_and_merges_mean_what_yaml_says() -> None:
    document = read_document(
        "base: &b {x: 1, y: 2}\nmore: &m {y: 5, z: 6}\n"
        "one: *b\ntwo:\n  <<: *b\n  y: 3\nthree:\n  <<: [*b, *m]\n",
        "f",
    )
    assert document.mistakes == []
    assert document.data["one"] == {"x": 1, "y": 2}
    assert document.data["two"] == {"x": 1, "y": 3}
    assert document.data["three"] == {"x": 1, "y": 2, "z": 6}
    assert document.line_of(("two", "y")) == 6
    assert document.line_of(("two", "x")) == 1


def test_shared_alias_is_a_copy_each_time() -> None:
    data = read_document("a: &a {x: 1}\nb: *a\n", "f").data
    assert data["a"] is not data["b"]


def test_alias_of_itself_is_refused() -> None:
    assert sentences("a: &a\n  b: *a\n") == ["f:2: a.b: contains itself by an alias"]


@pytest.mark.slow
def test_aliases_that_multiply_are_refused_once() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert len(found := sentences("\n".join(lines))) == 1
    assert f"expands to more than {MAX_NODES} values" in found[0]


@pytest.mark.parametrize("text", ["[" * 600, "- " * 3_000, "{a: " * 3_000])
def test_hostile_nesting_is_refused(text: str) -> None:
    assert sentences(text) == ["f: is nested too deeply"]


def test_nesting_is_bounded() -> None:
    fine, one_more = ("a: " + "[" * depth + "]" * depth for depth in (DEEPEST - 1, DEEPEST))
    assert sentences(fine) == []
    assert len(found := sentences(one_more)) == 1
    assert found[0].endswith(f"is nested more than {DEEPEST} deep")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: !!python/object:os.system {}", "has the tag tag:yaml.org,2002:python/object"),
        ("a: !mine 3", "has the tag !mine; plain values only"),
        ("a: !!binary aGk=", "has the tag tag:yaml.org,2002:binary"),
        ("a: !!set {x}", "has the tag tag:yaml.org,2002:set"),
        ("a: !!int abc", "a: is no int"),
        ("a: !!int ", "a: is no int"),
        ("a: !!bool abc", "a: is no bool"),
        ("a: " + "9" * 5000, "a: is no int"),
        ("? [x]\n: 1", "has a name that is no plain text"),
        ("a:\n  <<: 3", "merges (<<) something that is no mapping"),
    ],
)
def test_anything_but_plain_values_is_refused(text: str, message: str) -> None:
    (only,) = sentences(text)
    assert message in only


def test_dates_stay_text() -> None:
    assert read_document("a: 2024-01-31\n", "f").data == {"a": "2024-01-31"}


def test_names_are_text_whatever_yaml_makes_of_them() -> None:
    assert read_document("1: a\non: b\n~: c\n", "f").data == {"1": "a", "on": "b", "~": "c"}
