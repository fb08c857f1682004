"""A mistake is told by what its file's sections allow, whole or in brief."""

from __future__ import annotations

import pickle
from typing import Annotated

import pytest
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from yaml_document.document import read_document
from yaml_document.mistakes import DocumentErrors, Mistake, explain
from yaml_document.section import Section, listed, wrong
from yaml_document.shape import fields_below


class Wheel(Section):
    spokes: int = Field(ge=1, le=40)


class Cart(Section):
    name: str
    wheels: Annotated[tuple[Wheel, ...], BeforeValidator(listed)] = ()
    behind: Cart | None = None

    @model_validator(mode="after")
    def _rolls(self) -> Cart:
        if len(self.wheels) == 1:
            raise wrong("must not be one alone", "wheels")
        if len(self.wheels) == 3:
            raise ValueError("has three wheels")
        return self


def told(text: str, brief: bool) -> list[str]:
    document = read_document(text, "f")
    with pytest.raises(ValidationError) as caught:
        Cart.model_validate(document.data)
    found = explain(caught.value, Cart, document.mistake, brief=brief)
    return str(DocumentErrors(found)).splitlines()


@pytest.mark.parametrize(
    ("text", "whole", "brief"),
    [
        (
            "name: a\nwheels:\n- {spokes: 0}",
            "f:3: wheels[0].spokes: is 0; must be a whole number, 1 to 40",
            "f:3: wheels[0].spokes: is 0; must be greater than or equal to 1",
        ),
        ("wheels: []", "f:1: name: is missing; must be text", "f:1: name: is missing"),
        (
            "name: a\nwheel: 3",
            "f:2: wheel: unknown setting; did you mean wheels?",
            "f:2: wheel: unknown; did you mean wheels?",
        ),
        (
            "name: a\nspokes: 3",
            "f:2: spokes: unknown setting here; did you mean wheels[].spokes?",
            "f:2: spokes: unknown here; did you mean wheels[].spokes?",
        ),
    ],
)
def test_what_would_be_right_is_said_whole_or_in_brief(text: str, whole: str, brief: str) -> None:
    assert told(text, False) == [whole]
    assert told(text, True) == [brief]


@pytest.mark.parametrize("brief", [False, True])
def test_rule_of_a_section_is_told_at_its_place(brief: bool) -> None:
    text = "name: a\nwheels: [{spokes: 9}]"
    assert told(text, brief) == ["f:2: wheels: must not be one alone"]
    text = "name: a\nbehind: {name: b, wheels: [{spokes: 9}, {spokes: 9}, {spokes: 9}]}"
    assert told(text, brief) == ["f:2: behind: has three wheels"]


def test_section_within_itself_is_named_and_not_opened() -> None:
    names = [name for name, _ in fields_below(Cart)]
    assert names == ["name", "wheels", "wheels[].spokes", "behind"]
    assert "wheels[].spokes" not in [name for name, _ in fields_below(Cart, closed=(Wheel,))]


def test_mistakes_come_once_and_in_the_files_order_from_other_processes_too() -> None:
    later, first = Mistake("f", 2, "a", "no"), Mistake("f", 1, "b", "no")
    errors = pickle.loads(pickle.dumps(DocumentErrors([later, first, later])))
    assert errors.mistakes == (first, later)
    assert str(errors) == "f:1: b: no\nf:2: a: no"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &a {b: *a}", "f:1: is no YAML: contains itself by an alias"),
        ("? [x]\n: 1", "f:1: is no YAML: a name is no text"),
        ("a: 2024-99-01", "f:1: is no YAML: month must be in 1..12"),
        ("a: 1\na: 2", "f:2: a: is set twice, on lines 1 and 2; must be set once"),
        ("a: [1, 2, 3]", "f:1: is no YAML: expands to more than 3 values"),
    ],
)
def test_what_cannot_be_read_as_yaml_is_no_yaml(text: str, said: str) -> None:
    document = read_document(text, "f", as_yaml=True, max_nodes=4 if "[1" in text else 100)
    assert [str(each) for each in document.mistakes] == [said.replace("than 3", "than 4")]
