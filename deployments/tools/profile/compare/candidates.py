"""The ways of running one model that are compared.

Every backend that was named, at the precision that was named with it, or else at fp32, bf16 and the
model's own where the backend has them; in each of its modes; and with the processors given to one
replica or shared out among 2 and 4. Options of the model's own backend hold; another one gets those
that it knows, too.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args, get_type_hints

from deployments.settings.model import ModelSettings
from deployments.tools.profile.errors import WrongArguments
from runtimes import catalog
from runtimes.errors import LoadError

PRECISIONS = ("fp32", "bf16")
REPLICAS = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Candidate:
    """`replicas` processes with `threads` each; `mode`: the backend's own word, "" without any."""

    runtime: str
    precision: str
    mode: str
    options: tuple[tuple[str, Any], ...]
    threads: int
    replicas: int

    def __str__(self) -> str:
        words = " ".join(filter(None, (self.runtime, self.mode, self.precision)))
        times = "" if self.replicas == 1 else f"{self.replicas} replicas x "
        return f"{words}, {times}{self.threads} thread{'' if self.threads == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """What is not compared, and the sentence that says why."""

    name: str
    why: str


def candidates(
    names: Sequence[str], model: ModelSettings, cpus: int
) -> tuple[list[Candidate], list[Skipped]]:
    """Raises WrongArguments for a backend that there is not."""
    found: list[Candidate] = []
    skipped: list[Skipped] = []
    for wanted in dict.fromkeys(names):
        name, colon, precision = wanted.partition(":")
        if name not in catalog.names() or name == "synthetic":
            others = ", ".join(each for each in catalog.names() if each != "synthetic")
            raise WrongArguments(
                f"--compare: is {name!r}; must be some of {others}, perhaps with :PRECISION"
            )
        missing = catalog.available(name)
        if missing:
            skipped.append(Skipped(name, missing))
        else:
            found += _of(name, _precisions(name, precision, model, colon), model, cpus)
    return found, skipped


def _precisions(name: str, asked: str, model: ModelSettings, colon: str) -> list[str]:
    known = catalog.ENTRIES[name].precisions
    if not colon:
        return [each for each in dict.fromkeys((*PRECISIONS, model.precision)) if each in known]
    if asked not in known:
        raise WrongArguments(
            f"--compare: {name} has no precision {asked!r}, but {', '.join(known)}"
        )
    return [asked]


def _of(
    name: str, precisions: Sequence[str], model: ModelSettings, cpus: int
) -> Iterator[Candidate]:
    options = _options(name, model)
    for precision in precisions:
        for mode in _modes(name) or ("",):
            chosen = {**options, **({"mode": mode} if mode else {})}
            if _takes(name, precision, chosen):
                for replicas in (each for each in REPLICAS if each <= cpus):
                    yield Candidate(
                        name, precision, mode, tuple(sorted(chosen.items())),
                        cpus // replicas, replicas,
                    )  # fmt: skip


def _takes(name: str, precision: str, options: Mapping[str, Any]) -> bool:
    try:
        catalog.check(name, options, precision)
    except LoadError:
        return False
    return True


def _options(name: str, model: ModelSettings) -> dict[str, Any]:
    known = {field.name for field in fields(_class(name))}
    return {key: value for key, value in model.options.items() if key in known}


def _modes(name: str) -> tuple[str, ...]:
    hint = get_type_hints(_class(name)).get("mode")
    return tuple(map(str, get_args(hint))) if hint is not None else ()


def _class(name: str) -> type:
    entry = catalog.ENTRIES[name]
    found: type = getattr(importlib.import_module(entry.module), f"{entry.prefix}Options")
    return found
