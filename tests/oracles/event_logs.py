"""Recorded events of dispatchers, and what each did: told the same again, it does the same.

Logs are written while scenarios run on virtual time, one a gateway; `replay` needs no simulator. A
log's first line is the dispatcher's settings, each other one an event, its time and the actions.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from deployments.tools.simulate.simulation import SimulateOptions, prepare
from routers.api import actions, events
from routers.api.actions import Action
from routers.api.events import Event
from routers.api.requests import (
    Generation,
    LeaseEnd,
    Reason,
    Replica,
    ReplicaKind,
    Report,
    Request,
    Tokens,
)
from routers.api.settings import DispatcherSettings
from routers.schedulers import AnyScheduler, scheduler_of
from routers.shared.scheduler import Scheduler
from tests.oracles.simulations import SCENARIOS

HERE = Path(__file__).parent
FOLDER = HERE / "stored" / "events"
SECONDS = {
    "aggressor": (0.5, 0.2),
    "chaos": (5, 1),
    "generation-mix": (10, 2),
    "hiccups": (1.5, 0.5),
    "overload-2x": (3, 1),
    "sleeper": (1, 0.5),
    "stream-faults": (10, 2),
    "two-gateways-generation": (12, 2),
    "two-gateways-skewed": (1, 0.5),
}
"""Scenario, one that is shipped or one beside this file → how long, and how long its warm-up is."""

_RECORDS: dict[str, Any] = {
    "request": Request, "generation": Generation, "report": Report, "replicas": Replica,
    "tokens": Tokens, "given": Tokens,
}  # fmt: skip
_ENUMS: dict[str, Any] = {"end": LeaseEnd, "reason": Reason, "kind": ReplicaKind}


def record() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*"):
        old.unlink()
    with ProcessPoolExecutor() as pool:
        return sum(pool.map(_record_scenario, SECONDS))


def replay() -> tuple[int, list[str]]:
    """How many logs, and the first difference of each that has one."""
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(difference, logs()))
    return len(found), [each for each in found if each]


def logs() -> list[Path]:
    return sorted(FOLDER.glob("*.xz"))


def _record_scenario(name: str) -> int:
    seconds, warmup = SECONDS[name]
    changes = (f"duration_s={seconds}", f"warmup_s={warmup}")
    own = HERE / f"{name}.yaml"
    path = own if own.is_file() else SCENARIOS / f"{name}.yaml"
    simulation = prepare(path, SimulateOptions(changes, seed=1))
    with _watched() as logs:
        simulation.run(lambda now, requests: None)
    for number, lines in enumerate(logs):
        text = "\n".join(lines).encode()
        (FOLDER / f"{name}-{number}.jsonl.xz").write_bytes(lzma.compress(text, preset=9))
    return len(logs)


def difference(path: Path, look_every: int = 0) -> str:
    """The first action of a log that is another one now, "" for none. `look_every`: events after
    which a snapshot is taken, as whoever reads metrics does; 0: never."""
    lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    core = scheduler_of(msgspec.convert(json.loads(lines[0]), DispatcherSettings))
    for number, line in enumerate(lines[1:], 2):
        event, now, recorded = json.loads(line)
        if look_every and number % look_every == 0:
            core.snapshot(now)
        expected: list[Action] = [_untagged(each, actions) for each in recorded]
        found = core.step(_untagged(event, events), now)
        if found != expected:
            return f"{path.name}:{number}: {event[0]} at {now}: {found} instead of {expected}"
    return ""


@contextmanager
def _watched() -> Iterator[list[list[str]]]:
    """Every scheduler that is used inside writes a log."""
    logs: list[list[str]] = []
    of: dict[AnyScheduler, list[str]] = {}
    step = Scheduler.step

    def stepped(self: AnyScheduler, event: Event, now: float) -> list[Action]:
        if self not in of:
            of[self] = [json.dumps(msgspec.to_builtins(self._requests.settings))]
            logs.append(of[self])
        told = _tagged(event)
        actions = step(self, event, now)
        of[self].append(json.dumps([told, now, [_tagged(action) for action in actions]]))
        return actions

    Scheduler.step = stepped  # type: ignore[method-assign, assignment]
    try:
        yield logs
    finally:
        Scheduler.step = step  # type: ignore[method-assign]


def _tagged(told: Event | Action) -> list[Any]:
    return [type(told).__name__, msgspec.to_builtins(told)]


def _untagged(tagged: list[Any], module: ModuleType) -> Any:
    """An event or action; a field that is younger than the log has its default."""
    name, known = tagged
    return _record(getattr(module, name), known)


def _record(kind: Any, known: dict[str, Any]) -> Any:
    """A record of this kind. Not by its annotations: compiled, they do not say what tuples hold."""
    own = [each for each in fields(kind) if each.name in known]
    values = {each.name: _value(each.name, known[each.name]) for each in own}
    required = [each.name for each in own if each.default is each.default_factory]
    made = kind(**{name: values.pop(name) for name in required})
    for name, value in values.items():
        setattr(made, name, value)
    return made


def _value(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple([_value(name, each) for each in value])
    if name == "settings":
        return msgspec.convert(value, DispatcherSettings)
    if isinstance(value, dict):
        return _record(_RECORDS[name], value)
    return _ENUMS[name](value) if name in _ENUMS else value
