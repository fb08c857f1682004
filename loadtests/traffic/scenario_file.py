"""A scenario from its file: every mistake at once, each with file, line, path and what is right.

`change` sets single values (`--set arrivals.rate=300`) before anything is checked, so that what it
says is checked as if it stood in the file. It opens the file itself and nothing that it names.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from loadtests.traffic.scenario import Scenario
from yaml_document.document import Document, read_file
from yaml_document.mistakes import DocumentErrors, Mistake, dotted, explain
from yaml_document.section import Section
from yaml_document.shape import DocumentPath

Kind = TypeVar("Kind", bound=Section)
SHIPPED = Path(__file__).parents[1] / "scenarios"
MAX_VALUES = 100_000
SCENARIO = "a scenario"
# Files that are taken for one another: a name that each alone has at its top, and what takes it.
_TOLD_BY = {
    "models": ("a server's settings file", "`headrace serve` takes it"),
    "gateway": ("a server's settings file", "`headrace serve` takes it"),
    "promises": ("a file of promises", "`headrace load smoke` takes it"),
    "duration_s": (SCENARIO, "`headrace load` and `headrace simulate` take it"),
}
_INSTEAD = {
    SCENARIO: "a scenario says duration_s, arrivals and lengths, and may name a settings file "
    "under settings; some come with Headrace, such as `steady`",
    "a file of promises": "it names a scenario, and says promises",
}


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
    if path == Path(path.name) and not path.exists():
        raise ScenarioErrors(f"{path}: is no file, and no scenario of ours{_near(path.name)}")
    document = _read(path, SCENARIO)
    if trace is not None:
        _replay(document.data, trace)
    changes = tuple(changes)
    for each in changes:
        change(document.data, each)
    return _checked(Scenario, document, changes)


def _near(name: str) -> str:
    names = sorted(each.stem for each in SHIPPED.glob("*.yaml"))
    close = difflib.get_close_matches(name, names, 1, 0.6)
    return f"; did you mean {close[0]}?" if close else f"; ours stand in {SHIPPED}"


def check(data: Any) -> Scenario:
    """Of plain data, which has no lines. Raises ScenarioErrors."""
    return _checked(Scenario, Document("", data))


def read_part(path: Path, kind: type[Kind], what: str) -> Kind:
    """Another file of parts, with the same care; `what` it is, in words. Raises ScenarioErrors."""
    return _checked(kind, _read(path, what))


def _read(path: Path, wanted: str) -> Document:
    document = read_file(path, as_yaml=True, max_nodes=MAX_VALUES)
    if not document.mistakes and not isinstance(document.data, dict):
        document.mistakes.append(document.mistake((), "must be a mapping of names to values"))
    if document.mistakes:
        raise ScenarioErrors(str(DocumentErrors(document.mistakes)))
    kinds = dict(_TOLD_BY[name] for name in document.data if name in _TOLD_BY)
    if kinds and wanted not in kinds:
        kind, taker = next(iter(kinds.items()))
        instead = f"; {_INSTEAD[wanted]}" if wanted in _INSTEAD else ""
        raise ScenarioErrors(f"{path}: is {kind} and not {wanted}: {taker}{instead}")
    return document


def _checked(kind: type[Kind], document: Document, changes: Sequence[str] = ()) -> Kind:
    def where(path: DocumentPath, message: str) -> Mistake:
        steps = [str(step) for step in path]
        for each in changes:
            changed = each.partition("=")[0].split(".")
            if steps[: len(changed)] == changed:
                return Mistake(f"--set {each}", 0, dotted(path), message)
        return document.mistake(path, message)

    try:
        return kind.model_validate(document.data)
    except ValidationError as error:
        found = explain(error, kind, where, brief=True)
        raise ScenarioErrors(str(DocumentErrors(found))) from None


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
