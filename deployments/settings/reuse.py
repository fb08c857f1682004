"""`cache` and `fallback`: how a model's request is answered without a run of that model.

Both are off by default: a cached answer is right only for a model that gives equal answers to equal
inputs, and a fallback model gives different answers. `fallback_mistakes` checks, over all models,
that each fallback names a model that exists, has the same task, and does not lead back.
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
        description="Memory for cached answers at one gateway. 0: no cache.",
    )
    ttl_s: float = Field(
        default=300, gt=0, le=31_536_000, description="Longest time that an answer is cached."
    )
    public: bool = Field(
        default=False,
        description="Whether a tenant may get an answer that was cached for another tenant. If so, "
        "a tenant can tell from the cache's speed and answers what others have asked.",
    )


def fallback_mistakes(models: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """(path, error) of each `fallback` that names no model, leads back, or has another task.

    `models`: name to plain data with `fallback` and `task`; other mistakes in it are ignored.
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
