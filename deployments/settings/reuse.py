"""What a model does before it refuses: answers it has kept, answers it shares, a cheaper model.

All of it is off unless asked for: an answer kept or shared is right only for a model that gives
equal answers to equal inputs, and a cheaper model gives others. That fallbacks lead to models that
exist is checked here too, over the whole list (`astray`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from yaml_document.section import Section


class CacheSettings(Section):
    max_bytes: int = Field(
        default=0,
        ge=0,
        le=1_099_511_627_776,
        description="Memory for answered rows at one gateway; 0 keeps none.",
    )
    ttl_s: float = Field(
        default=300, gt=0, le=31_536_000, description="An answer is kept for so long at most."
    )
    public: bool = Field(
        default=False,
        description="Whether a tenant may be given an answer that another's request made; what "
        "was asked before can then be told from how fast, and whether, the cache answers.",
    )


def astray(models: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Path and sentence of every `fallback` that leads nowhere, back, or to another task.

    `models`: name to a mapping with `fallback` and `task`, as a file has them; whatever is wrong
    with a model besides is not looked at.
    """
    given = {name: model for name, model in models.items() if isinstance(model, Mapping)}
    leads = {name: model.get("fallback") for name, model in given.items()}
    for name, to in leads.items():
        if isinstance(to, str) and (message := _mistake(name, to, leads, given)):
            yield ("models", name, "fallback"), message


def _mistake(name: str, to: str, leads: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    if to not in given:
        others = [other for other in given if other != name]
        return f"is {to!r}; must be " + (f"one of {', '.join(others)}" if others else "left out")
    chain = [name, to]
    while isinstance(further := leads.get(chain[-1]), str) and chain[-1] not in chain[:-1]:
        chain.append(further)
    if chain[-1] == name:
        return f"leads back ({' to '.join(chain)}); must end at a model without a fallback"
    mine, its = (given[each].get("task", "tensors") for each in (name, to))
    if mine != its:
        return f"is {to!r}, whose task is {its}; must be a model whose task is {mine}"
    return None
