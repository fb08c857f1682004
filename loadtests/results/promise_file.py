"""The file of `headrace load smoke`: a scenario, how it is played, and the promises to check.

One YAML file, read with a scenario's care; mistakes are ScenarioErrors. Whether the tenants and
lengths that it speaks of exist is known once its scenario is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from loadtests.results.promises import Positive, Promise
from loadtests.traffic.scenario_file import read_part
from yaml_document.section import Section, listed


class PromiseFile(Section):
    """Files are relative to this one."""

    scenario: str = Field(description="The scenario's file.")
    url: str = Field(default="", description="The server; `--url` goes before it.")
    protocol: str = Field(default="oip", description="As `--protocol` of `headrace load`.")
    adapter: str = Field(default="", description="The file of a `custom` protocol.")
    model: str = Field(default="", description="Unset, the scenario's.")
    slo_ms: Positive | None = Field(
        default=None, description="Unset, the settings file's, else the server's."
    )
    changes: Annotated[tuple[str, ...], BeforeValidator(listed)] = Field(
        default=(), description="Changes to the scenario, such as `arrivals.rate=300`."
    )
    processes: int = Field(default=1, ge=1, le=256, description="Generators.")
    promises: Annotated[tuple[Promise, ...], BeforeValidator(listed)] = Field(
        min_length=1, description="What must come of it."
    )


def load(path: Path) -> PromiseFile:
    """With its files' paths made whole. Raises ScenarioErrors."""
    found = read_part(path, PromiseFile)
    adapter = str(path.parent / found.adapter) if found.adapter else ""
    return found.model_copy(
        update={"scenario": str(path.parent / found.scenario), "adapter": adapter}
    )


def about_nobody(
    promises: Iterable[Promise], tenants: Iterable[str], edges: Iterable[int]
) -> Iterator[str]:
    """What the promises speak of and the scenario does not have."""
    known, lengths = list(tenants), list(edges)
    for place, promise in enumerate(promises):
        if promise.tenant is not None and promise.tenant not in known:
            yield f"promises[{place}].tenant: is {promise.tenant}; must be {_one_of(known)}"
        if promise.length is not None and promise.length not in lengths:
            yield f"promises[{place}].length: is {promise.length}; must be {_one_of(lengths)}"


def _one_of(values: Iterable[object]) -> str:
    return " or ".join(map(str, values))
