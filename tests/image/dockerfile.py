"""The Dockerfile as stages of instructions, with the values of its ARGs put in.

Reads what our own Dockerfile uses: no heredocs, no ONBUILD, no mounts.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction: RUN, COPY, …, and all that stands behind it."""

    instruction: str
    value: str


@dataclass(slots=True)
class Stage:
    """`base`: another stage's name, or an image."""

    name: str
    base: str
    steps: list[Step] = field(default_factory=list)

    def values(self, instruction: str) -> list[str]:
        return [each.value for each in self.steps if each.instruction == instruction]


def stages(path: Path = DOCKERFILE) -> dict[str, Stage]:
    """By name, in order. Raises ValueError for a stage that has none."""
    arguments: dict[str, str] = {}
    found: list[Stage] = []
    for each in _structure(path):
        instruction, value = each["instruction"], each["value"]
        if instruction == "COMMENT":
            continue
        if instruction == "ARG":
            arguments |= _argument(value)
        elif instruction == "FROM":
            found.append(_stage(_filled(value, arguments)))
        else:
            raw = value if instruction == "RUN" else _filled(value, arguments)
            found[-1].steps.append(Step(instruction, raw))
    return {stage.name: stage for stage in found}


def way(name: str, known: Mapping[str, Stage]) -> list[Stage]:
    """The stages that one stands on, its own last."""
    stage = known[name]
    return [*(way(stage.base, known) if stage.base in known else ()), stage]


def assignments(value: str) -> dict[str, str]:
    """Of an ENV or LABEL."""
    pairs = (each.partition("=") for each in shlex.split(value))
    return {name: text for name, _, text in pairs}


def command(value: str) -> list[str]:
    """Of a CMD in its JSON form. Raises ValueError for the other."""
    found: list[str] = json.loads(value)
    return found


@cache
def _structure(path: Path) -> list[dict[str, Any]]:
    from dockerfile_parse import DockerfileParser

    found: list[dict[str, Any]] = DockerfileParser(str(path)).structure
    return found


def _argument(value: str) -> dict[str, str]:
    name, _, default = value.partition("=")
    return {name: default}


def _filled(value: str, arguments: Mapping[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda m: arguments[m[1]], value)


def _stage(value: str) -> Stage:
    matched = re.fullmatch(r"(\S+)\s+(?i:as)\s+(\S+)", value)
    if matched is None:
        raise ValueError(f"FROM {value}: must name its stage, FROM … AS …")
    return Stage(matched[2], matched[1])
