"""A scenario from its file: every mistake at once, each with file, line, path and what is right.

`change` sets single values (`--set arrivals.rate=300`) before anything is checked, so that what it
says is checked as if it stood in the file. It opens the file itself and nothing that it names.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from loadtests.traffic.scenario import Scenario

Place = tuple[str | int, ...]
Kind = TypeVar("Kind", bound=BaseModel)
SHIPPED = Path(__file__).parents[1] / "scenarios"
MOST_BYTES = 1024 * 1024
MOST_VALUES = 100_000


class ScenarioErrors(ValueError):
    """Every mistake that was found, in the file's order."""


def located(path: Path) -> Path:
    """The file; a bare name is one of the scenarios that come with Headrace, unless there is such a
    file."""
    shipped = SHIPPED / f"{path.name}.yaml"
    return shipped if not path.exists() and path == Path(path.name) and shipped.exists() else path


def load(path: Path, changes: Iterable[str] = (), trace: Path | None = None) -> Scenario:
    """`changes`: `dotted.path=value`, the value in YAML. `trace`: a recording that all tenants'
    requests come from instead. Raises ScenarioErrors."""
    data, lines = _read(path)
    if trace is not None:
        _replay(data, trace)
    for each in changes:
        change(data, each)
    return check(data, str(path), lines)


def check(data: Any, file: str = "", lines: Mapping[Place, int] | None = None) -> Scenario:
    """Raises ScenarioErrors; lines are known for what stands in the file."""
    return _checked(Scenario, data, file, lines or {})


def read_part(path: Path, kind: type[Kind]) -> Kind:
    """Another file of parts, with the same care. Raises ScenarioErrors."""
    data, lines = _read(path)
    return _checked(kind, data, str(path), lines)


def _checked(kind: type[Kind], data: Any, file: str, lines: Mapping[Place, int]) -> Kind:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        found = [_mistake(kind, each, file, lines) for each in error.errors(include_url=False)]
        raise ScenarioErrors("\n".join(text for _, text in sorted(found))) from None


def change(data: dict[str, Any], setting: str) -> None:
    """`a.b.0.c=value` in place; sections that are missing are made. Raises ScenarioErrors."""
    path, equals, text = setting.partition("=")
    steps = path.split(".")
    if not equals or not all(steps):
        raise ScenarioErrors(f"{setting!r} is no change; write path.to.setting=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ScenarioErrors(f"{setting!r}: {text!r} is no YAML value") from None
    place: Any = data
    for at, step in enumerate(steps[:-1]):
        place = _below(place, step, ".".join(steps[: at + 1]))
    if isinstance(place, list):
        place[_position(place, steps[-1], path)] = value
    else:
        place[steps[-1]] = value


def _replay(data: dict[str, Any], trace: Path) -> None:
    """Puts a recording in the place of all arrivals and lengths; tenants keep their shares."""
    data["arrivals"] = {"process": "trace", "file": str(trace.absolute())}
    data["lengths"] = {"column": ""}
    if data.pop("output", None) is not None:
        data["output"] = {"column": ""}
    tenants = data.get("tenants")
    for tenant in tenants.values() if isinstance(tenants, dict) else ():
        if isinstance(tenant, dict):
            tenant.pop("arrivals", None)
            tenant.pop("lengths", None)
            tenant.pop("output", None)


def _below(place: Any, step: str, path: str) -> Any:
    if isinstance(place, list):
        return place[_position(place, step, path)]
    if not isinstance(place.get(step), dict | list):
        place[step] = {}
    return place[step]


def _position(place: list[Any], step: str, path: str) -> int:
    if not step.isdecimal() or int(step) >= len(place):
        raise ScenarioErrors(f"{path}: {step} is no position; there are {len(place)}, from 0")
    return int(step)


# ---- reading ---------------------------------------------------------------------------------


def _read(path: Path) -> tuple[dict[str, Any], dict[Place, int]]:
    try:
        text = path.read_bytes()[: MOST_BYTES + 1].decode("utf-8-sig")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ScenarioErrors(f"{path}: cannot be read: {reason}") from None
    except UnicodeDecodeError:
        raise ScenarioErrors(f"{path}: is no UTF-8 text") from None
    lines: dict[Place, int] = {}
    twice: list[str] = []
    try:
        node = yaml.compose(text, yaml.SafeLoader)
        _note_lines(node, (), lines, twice)
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be read"
        raise ScenarioErrors(f"{path}{line}: is no YAML: {problem}") from None
    except ValueError as error:  # what looks like a date or a number and is none
        raise ScenarioErrors(f"{path}: is no YAML: {error}") from None
    if twice:
        raise ScenarioErrors("\n".join(f"{path}{each}" for each in twice))
    if not isinstance(data, dict):
        raise ScenarioErrors(f"{path}: must be a mapping of names to values")
    return data, lines


def _note_lines(node: Any, at: Place, lines: dict[Place, int], twice: list[str]) -> None:
    if len(lines) > MOST_VALUES:
        raise yaml.MarkedYAMLError(
            problem=f"expands to more than {MOST_VALUES} values", problem_mark=node.start_mark
        )
    if isinstance(node, yaml.MappingNode):
        for key, inner in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a name is no text", problem_mark=key.start_mark)
            place = (*at, key.value)
            line = key.start_mark.line + 1
            if place in lines:
                twice.append(f":{line}: {_dotted(place)}: is set twice; must be set once")
            lines[place] = line
            _note_lines(inner, place, lines, twice)
    elif isinstance(node, yaml.SequenceNode):
        for position, inner in enumerate(node.value):
            lines[*at, position] = inner.start_mark.line + 1
            _note_lines(inner, (*at, position), lines, twice)


# ---- saying what is wrong --------------------------------------------------------------------


def _mistake(kind: Any, error: Any, file: str, lines: Mapping[Place, int]) -> tuple[int, str]:
    place: Place = tuple(error["loc"])
    if error["type"] == "extra_forbidden":
        message = _unknown(kind, place)
    elif error["type"] == "missing":
        message = "is missing"
    elif error["type"] == "value_error":
        message = str(error["ctx"]["error"])
    else:
        must = error["msg"].replace("Input should be", "must be")
        must = must.replace("a valid integer", "a whole number").replace("a valid ", "a ")
        message = f"is {_shown(error['input'])}; {must}"
    line = next((lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in lines), 0)
    where = f"{file}:{line}" if file and line else file
    return line, ": ".join(part for part in (where, _dotted(place), message) if part)


def _unknown(kind: Any, place: Place) -> str:
    known = list(_fields(kind, place[:-1]))
    close = difflib.get_close_matches(str(place[-1]), known, 1, 0.6)
    if close:
        return f"unknown; did you mean {close[0]}?"
    return f"unknown; known here: {', '.join(known)}"


def _fields(kind: Any, place: Place) -> Iterable[str]:
    """Names that may stand at a place of a part."""
    for step in place:
        if _is_part(kind):
            field = kind.model_fields.get(str(step))
            kind = None if field is None else _without_none(field.annotation)
        else:  # a list or a mapping: one of its entries
            kind = next((each for each in get_args(kind) if _is_part(each)), None)
    return kind.model_fields if _is_part(kind) else ()


def _without_none(annotation: Any) -> Any:
    """Peels `| None` and `Annotated` off."""
    while get_origin(annotation) in (Annotated, Union, types.UnionType):
        annotation = next(each for each in get_args(annotation) if each is not type(None))
    return annotation


def _is_part(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _shown(value: Any) -> str:
    if isinstance(value, dict | list | tuple):
        return "a mapping" if isinstance(value, dict) else "a list"
    return "empty" if value is None else repr(value)[:60]


def _dotted(place: Place) -> str:
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
