"""Runs a scenario against a server, from the command line's options to the record.

The model, its SLO and its length buckets come from the settings file that the scenario names, if it
names one; options of the command line take precedence. An SLO that neither has is the one that the
server names in the model's metadata: without any, nothing could be in time or late.
"""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from loadtests.client.protocols import PROTOCOLS
from loadtests.client.protocols.types import Endpoint, Wire, WireError
from loadtests.results.record import Client, Record
from loadtests.results.recorder import RecordingRules, RunRecorder, TokenLimits
from loadtests.results.report_table import this_machine
from loadtests.traffic import scenario_file
from loadtests.traffic.scenario import Scenario
from loadtests.workers import Glimpse, PlayOrder, WorkerResult, play
from yaml_document.document import read_file
from yaml_document.mistakes import DocumentErrors

EDGES = (32, 128, 512, 2048, 8192, 32768)
PACKAGES = ("headrace", "uvloop", "numpy")


class InvalidRunOptions(ValueError):
    """Options of the command line are wrong; the message says what would be right."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The command line. `trace`: a recording instead of the scenario's arrivals and lengths."""

    scenario: Path
    url: str
    ca: str = ""
    protocol: str = "oip"
    model: str = ""
    changes: tuple[str, ...] = ()
    trace: Path | None = None
    slo_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = True
    adapter: str = ""
    processes: int = 1
    connections: int = 4096
    timeout_s: float = 30.0
    command: str = ""


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A scenario and a server that it can be played to, any number of times."""

    options: RunOptions
    scenario: Scenario
    wire: Wire
    slo_s: float | None
    edges: tuple[int, ...]
    tokens: TokenLimits = field(default_factory=TokenLimits)

    def order(self) -> PlayOrder:
        scenario, options = self.scenario, self.options
        terms = RecordingRules(
            {name: self._slo_s(name) for name, _ in scenario.callers()},
            self.edges,
            scenario.warmup_s,
            scenario.run_s,
            self.tokens,
            options.stream,
        )
        folder, processes = options.scenario.parent, options.processes
        return PlayOrder(
            scenario, folder, self.wire, terms, processes, options.connections, options.timeout_s
        )

    def check_slo(self) -> None:
        """Raises InvalidRunOptions if some caller has no limit: its answers would be neither in
        time nor late."""
        limits = [self._slo_s(name) for name, _ in self.scenario.callers()]
        if not (all(limits) or self.tokens):
            raise InvalidRunOptions(
                "--slo-ms is missing (or --ttft-ms, for a model that generates): neither the "
                f"scenario's settings nor the server name the SLO of {self.wire.place.model}"
            )

    @property
    def left_out(self) -> list[str]:
        """What the scenario asks for that no load generator can do to a server."""
        simulated = ("replicas", "joins", "gateways", "device", "faults")
        return [name for name in simulated if name in self.scenario.model_fields_set]

    def play(self, watch: Callable[[list[Glimpse]], None] = lambda _: None) -> Record:
        """Raises TraceError and WorkerLost."""
        started = datetime.datetime.now(datetime.UTC)
        order = self.order()
        accounts = play(order, watch)
        record = self._blank(f"{started:%Y-%m-%d %H:%M:%S} UTC")
        fill(record, order, accounts, self.slo_s or self.tokens.first_s)
        return record

    def _slo_s(self, tenant: str) -> float | None:
        own = dict(self.scenario.callers())[tenant].budget_ms
        return self.slo_s if own is None else own / 1e3

    def _blank(self, started: str) -> Record:
        options, scenario = self.options, self.scenario
        return Record(
            name=options.scenario.stem,
            about=scenario.about.strip(),
            scenario=scenario.model_dump(mode="json", exclude_defaults=True),
            url=options.url,
            protocol=options.protocol,
            model=self.wire.place.model,
            command=options.command,
            started=started,
            machine=this_machine(),
            versions=versions(),
            slo_ms=_ms(self.slo_s),
            ttft_ms=_ms(self.tokens.first_s),
            tpot_ms=_ms(self.tokens.each_s),
        )


def fill(
    record: Record, order: PlayOrder, accounts: list[WorkerResult], slo_s: float | None
) -> None:
    """Adds up what each process saw."""
    recorder: RunRecorder = accounts[0].recorder
    for account in accounts[1:]:
        recorder.merge(account.recorder)
    ran_s = max(account.stopped_s for account in accounts)
    seconds = max(0.0, min(ran_s, order.terms.end_s) - order.terms.begin_s)
    cpu_s = sum(account.cpu_s for account in accounts)
    client = Client(
        processes=order.processes,
        connections=order.connections,
        cpu_us=cpu_s / recorder.tries * 1e6 if recorder.tries else 0.0,
    )
    full = order.connections if any(account.full for account in accounts) else 0
    client.behind = recorder.behind(slo_s, max(account.cpu for account in accounts), full)
    recorder.fill(record, client, seconds)


def prepare(options: RunOptions) -> PreparedRun:
    """Reads everything and asks the server what has to be known. Raises ScenarioErrors, WireError
    and InvalidRunOptions."""
    scenario = _scenario(options)
    settings = _settings(options.scenario.parent, scenario)
    name = options.model or scenario.model or _only_model(settings)
    model = settings.get("models", {}).get(name) or {}
    slo = model.get("slo") or {}
    wire = _wire(options, scenario, name)
    slo_ms = options.slo_ms or slo.get("latency_ms")
    first_ms, each_ms = options.ttft_ms or slo.get("ttft_ms"), options.tpot_ms or slo.get("tpot_ms")
    if not (slo_ms or first_ms or each_ms):
        slo_ms, first_ms = _told_slo(wire.place)
    tokens = TokenLimits(_s(first_ms), _s(each_ms))
    buckets = (model.get("lengths") or {}).get("buckets")
    edges = tuple(buckets) if isinstance(buckets, list) and buckets else EDGES
    return PreparedRun(options, scenario, wire, _s(slo_ms), edges, tokens)


def _s(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _scenario(options: RunOptions) -> Scenario:
    return scenario_file.load(options.scenario, options.changes, options.trace)


def _settings(folder: Path, scenario: Scenario) -> dict[str, Any]:
    """As the file says; a server's settings are checked by the server. Empty where there are
    none."""
    if scenario.settings is None:
        return {}
    document = read_file(folder / scenario.settings)
    if document.mistakes:
        raise InvalidRunOptions(str(DocumentErrors(document.mistakes)))
    return document.data if isinstance(document.data, dict) else {}


def _only_model(settings: Mapping[str, Any]) -> str:
    names = list(settings.get("models") or {})
    if len(names) != 1:
        said = f"one of {', '.join(names)}" if names else "the model's name"
        raise InvalidRunOptions(f"--model is missing; must be {said}")
    return str(names[0])


def _told_slo(place: Endpoint) -> tuple[float | None, float | None]:
    """The model's limits as the server names them, milliseconds, of the whole answer and of the
    first token; None for what it does not name."""
    try:
        said = place.metadata().get("parameters") or {}
    except WireError:
        return None, None
    return said.get("slo_latency_ms"), said.get("slo_ttft_ms")


def _wire(options: RunOptions, scenario: Scenario, model: str) -> Wire:
    callers = list(scenario.callers())
    place = Endpoint(
        url=options.url,
        model=model,
        headers=options.headers,
        keys=options.keys,
        budgets_ms={name: each.budget_ms for name, each in callers if each.budget_ms is not None},
        priorities={name: each.priority for name, each in callers if each.priority is not None},
        extra=options.extra,
        stream=options.stream,
        adapter=options.adapter,
        ca=options.ca,
    )
    if (options.protocol == "custom") != bool(options.adapter):
        raise InvalidRunOptions("--protocol custom and --adapter FILE belong together")
    try:
        _ = place.target.context
    except ValueError as error:
        raise InvalidRunOptions(f"--url: {error}") from None
    except OSError as error:  # ssl.SSLError is one
        raise InvalidRunOptions(f"--ca {options.ca}: {error}") from None
    wire = PROTOCOLS[options.protocol](place)
    wire.prepare()
    return wire
