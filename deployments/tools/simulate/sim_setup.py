"""Sets up a simulated server from a scenario and its settings: core, device, and tenants' limits.

Settings are translated for the core by the code that the service uses (`deployments/contract/`), so
the two cannot differ. A model of any other runtime is treated as `synthetic`, with the device that
the scenario names; one that generates has the engine that the scenario names. Nothing is loaded and
no time passes. Prompts have no words here: which of them begin alike is a matter of whose they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zlib import crc32

from deployments.contract.description import (
    GatewayIdentity,
    Generating,
    ModelDescription,
    dispatcher_settings,
)
from deployments.gateway.tenancy.tenants import Tenant, Tenants
from deployments.replica.describe import describe, runtime_settings, with_lengths
from deployments.replica.groups import GroupLengths, combined
from deployments.replica.known_costs import KnownCosts
from deployments.replica.scheduling import scheduling
from deployments.settings.lengths import bucket_edges
from deployments.settings.model import ModelSettings
from deployments.settings.tree import Settings
from loadtests.results.fairness import Entitlement
from loadtests.traffic.plan import Planned
from loadtests.traffic.scenario import Scenario, TenantPart
from loadtests.traffic.scenario_faults import EnginePart
from routers.api.requests import Generation
from routers.api.settings import DispatcherSettings
from runtimes import options
from runtimes.errors import LoadError
from runtimes.profiling import Profile, measure
from runtimes.synthetic.engine import EngineShape
from runtimes.synthetic.runtime import SyntheticOptions, SyntheticRuntime, service_s
from runtimes.synthetic.stream import SyntheticStreamOptions
from runtimes.types import Batch, Limits, RuntimeSettings

_NO_FILES = Path()
_TIMES = ("base_ms", "per_request_ms", "per_token_us")
_SESSION_SHARE = 0.5  # of a prompt, what its session's earlier ones have in common with it
_ROOM = 1 << 24  # blocks a name has


def engine_of(scenario: Scenario) -> EngineShape:
    part = scenario.engine or EnginePart()
    return EngineShape(
        base_s=part.base_ms / 1e3,
        sequence_s=part.per_sequence_ms / 1e3,
        token_s=part.per_token_us / 1e6,
        cache_tokens=part.cache_tokens,
        max_sequences=part.max_sequences,
        step_tokens=part.step_tokens,
        block_tokens=part.block_tokens,
        chunk_tokens=part.chunk_tokens or 0,
    )


def description_of(name: str, model: ModelSettings, engine: EngineShape) -> ModelDescription:
    """The model's description as a replica with this engine would make it."""
    generating = Generating(
        context_tokens=model.lengths.max,
        cache_tokens=engine.cache_tokens,
        max_sequences=engine.max_sequences,
        block_tokens=engine.block_tokens,
        profile=engine.profile() if model.profile_s > 0.0 else (),
    )
    return ModelDescription(
        name=name,
        version=model.version or "simulated",
        generation=0,
        platform="simulated",
        task=model.task,
        inputs=(),
        outputs=(),
        lengths_input=None,
        lengths_axis=1,
        mask_input=None,
        optional_inputs=(),
        max_length=model.lengths.max,
        truncate=False,
        bucket_edges=bucket_edges(model.lengths),
        pads=False,
        precision=model.precision,
        device="simulated",
        scheduling=scheduling(model),
        digest="",
        generating=generating,
    )


class Prompts:
    """What simulated requests ask for, one after another."""

    def __init__(self, scenario: Scenario, context_tokens: int, block_tokens: int) -> None:
        self._tenants = dict(scenario.callers())
        self._context_tokens = context_tokens
        self._block_tokens = block_tokens
        self._named = 0

    def asked(self, planned: Planned, prompt: int) -> tuple[Generation, int]:
        """Of a prompt so long; and the output that it comes to."""
        tenant = self._tenants[planned.tenant]
        left = max(1, self._context_tokens - prompt)
        most = min(left, tenant.max_tokens or planned.output or left)
        output = min(most, planned.output or most)
        return Generation(most, 1, self._blocks(planned, tenant, prompt)), output

    def _blocks(self, planned: Planned, tenant: TenantPart, prompt: int) -> tuple[int, ...]:
        blocks = prompt // self._block_tokens
        shared = min(blocks, tenant.prefix_tokens // self._block_tokens)
        found = _named(planned.tenant, shared)
        if planned.session:
            found += _named(f"session {planned.session}", int((blocks - shared) * _SESSION_SHARE))
        self._named += 1
        return found + _named(f"request {self._named}", blocks - len(found))


def _named(name: str, blocks: int) -> tuple[int, ...]:
    start = crc32(name.encode()) * _ROOM
    return tuple(range(start, start + blocks))


class SimSetupError(ValueError):
    """Scenario and settings do not fit together; says where and why."""


@dataclass(frozen=True, slots=True)
class TenantTerms:
    """By what right a tenant's requests come; see `api.requests.Request`. `slo_s` and `timeout_s`
    from arrival."""

    tenant: Tenant
    slo_s: float
    timeout_s: float
    priority: int
    weight: float
    tenant_rows: int
    retryable: bool


@dataclass(frozen=True, slots=True)
class SimGroup:
    """Replicas of one kind, all of a model without groups. `replicas`: how many run at the start.
    `service_s(rows, width)`: the device's time; `engine`: of a model that generates, instead."""

    name: str
    replicas: int
    slots: int
    service_s: Callable[[int, int], float]
    engine: EngineShape | None = None


@dataclass(frozen=True, slots=True)
class SimSetup:
    """`description`: what replicas would announce. `groups`: in the settings' order, at least one.
    `longest`: rows are cut to it, None: they are
    not. `slo_share`: of the requests that should be in time, 0..1. `prompts`: of a model that
    generates, what its requests ask for."""

    core: DispatcherSettings
    description: ModelDescription
    groups: tuple[SimGroup, ...]
    terms: dict[str, TenantTerms]
    longest: int | None
    gateways: int
    hang_limit_s: float
    slo_share: float
    prompts: Prompts | None = None

    @property
    def replicas(self) -> int:
        return sum(group.replicas for group in self.groups)

    @property
    def service_s(self) -> Callable[[int, int], float]:
        """Of the first group, in whose seconds work is counted."""
        return self.groups[0].service_s

    @property
    def engine(self) -> EngineShape | None:
        return self.groups[0].engine

    def claims(self) -> dict[str, Entitlement]:
        return {name: Entitlement(each.weight, each.priority) for name, each in self.terms.items()}

    def generation_cost_s(self, prompt: int, output: int) -> float:
        """SimDevice seconds that a generation is worth: weighted tokens, at what one takes of an
        engine that gives tokens to half of the sequences that it may run."""
        assert self.engine is not None
        assert self.core.generation is not None
        settings, engine = self.core.generation, self.engine
        running = max(1.0, engine.max_sequences / 2)
        token_s = (engine.base_s / running + engine.sequence_s) / settings.output_weight
        return token_s * (settings.input_weight * prompt + settings.output_weight * output)

    def row_cost_s(self, length: int) -> float:
        """SimDevice seconds of a row that is one of a full batch of its length."""
        core = self.core
        rows = core.fixed_size or max(1, min(core.max_size, core.max_tokens // length))
        max_s = core.max_slo_share * core.slo_s
        while rows > 1 and core.fixed_size is None and self.service_s(rows, length) > max_s:
            rows -= 1
        return self.service_s(rows, length) / rows


def set_up(scenario: Scenario, settings: Settings, *, cut: bool = False) -> SimSetup:
    """`cut`: rows that are too long for the model are cut, as if its settings truncated them.
    Raises SimSetupError."""
    name, model = model_of(scenario, settings)
    if model.task == "generate":
        return _generating(scenario, settings, name, model)
    if scenario.engine is not None:
        raise SimSetupError(f"engine: must be left out; {name} generates nothing")
    parts: dict[str, ModelDescription] = {}
    groups: list[SimGroup] = []
    for group, view in _views(scenario, name, model).items():
        device = _device(scenario, name, view)
        parts[group] = _description(name, view, device)
        groups.append(
            SimGroup(group, _count(scenario, view), view.replicas.slots, partial(service_s, device))
        )
    description = _joined(parts, model)
    priorities = settings.gateway.priorities
    gateway = GatewayIdentity("simulated", len(priorities), settings.controllers.frozen)
    return SimSetup(
        core=dispatcher_settings(description, gateway),
        description=description,
        groups=tuple(groups),
        terms=_terms(scenario, settings, description),
        longest=description.max_length if description.truncate or cut else None,
        gateways=scenario.gateways or settings.gateway.replicas,
        hang_limit_s=model.replicas.hang_limit_s,
        slo_share=model.slo.percentile / 100,
    )


def _generating(
    scenario: Scenario, settings: Settings, name: str, model: ModelSettings
) -> SimSetup:
    if scenario.device is not None:
        raise SimSetupError(f"device: must be left out; {name} generates, say engine instead")
    parts: dict[str, ModelDescription] = {}
    groups: list[SimGroup] = []
    for group, view in _views(scenario, name, model).items():
        engine = _own_engine(name, group, view) if group else engine_of(scenario)
        if engine.cache_tokens < model.lengths.max:
            raise SimSetupError(
                f"engine.cache_tokens: is {engine.cache_tokens}; must hold a request of "
                f"{model.lengths.max} tokens, which is {name}'s lengths.max"
            )
        parts[group] = description_of(name, view, engine)
        count, slots = _count(scenario, view), view.replicas.slots
        groups.append(SimGroup(group, count, slots, lambda rows, width: 0.0, engine))
    description, block_tokens = _joined(parts, model), engine.block_tokens
    gateway = GatewayIdentity(
        "simulated", len(settings.gateway.priorities), settings.controllers.frozen
    )
    return SimSetup(
        core=dispatcher_settings(description, gateway),
        description=description,
        groups=tuple(groups),
        terms=_terms(scenario, settings, description),
        longest=model.lengths.max - 1,
        gateways=scenario.gateways or settings.gateway.replicas,
        hang_limit_s=model.replicas.hang_limit_s,
        slo_share=model.slo.percentile / 100,
        prompts=Prompts(scenario, model.lengths.max, block_tokens),
    )


def _own_engine(name: str, group: str, view: ModelSettings) -> EngineShape:
    """Of a group, which says it itself: a scenario has one engine."""
    if view.runtime != "synthetic":
        raise SimSetupError(
            f"settings.models.{name}.replicas.groups: {group} runs {view.runtime}; only synthetic "
            "groups can be simulated, whose options say how fast they are"
        )
    try:
        return options.parse(SyntheticStreamOptions, view.options).shape()
    except LoadError as error:
        raise SimSetupError(f"settings.models.{name}, group {group}: {error}") from None


def _views(scenario: Scenario, name: str, model: ModelSettings) -> dict[str, ModelSettings]:
    """The settings of each group's replicas; of all of them, as "", in a model without groups."""
    views = model.views()
    for setting in ("device", "engine", "replicas") if views else ():
        if getattr(scenario, setting) is not None:
            raise SimSetupError(
                f"{setting}: must be left out; {name} has groups, whose settings say it"
            )
    return views or {"": model}


def _count(scenario: Scenario, view: ModelSettings) -> int:
    return view.replicas.initial if scenario.replicas is None else scenario.replicas


def _joined(parts: dict[str, ModelDescription], model: ModelSettings) -> ModelDescription:
    """What the anchor would announce once replicas of every group run."""
    if "" in parts:
        return parts[""]
    groups = model.replicas.groups
    description, refused = combined(
        parts,
        {group.name: group.after_s for group in groups},
        GroupLengths.of(model.lengths, {group.name: group.max_length for group in groups}),
    )
    for name, reason in refused.items():
        raise SimSetupError(f"group {name} would get no requests: {reason}")
    return description


def model_of(scenario: Scenario, settings: Settings) -> tuple[str, ModelSettings]:
    """That which is simulated. Raises SimSetupError."""
    names = list(settings.models)
    name = names[0] if scenario.model is None else scenario.model
    if name not in settings.models:
        raise SimSetupError(f"model: is {name!r}; {scenario.settings} has {', '.join(names)}")
    if scenario.model is None and len(names) > 1:
        raise SimSetupError(f"model: is missing; must be one of {', '.join(names)}")
    return name, settings.models[name]


def _device(scenario: Scenario, name: str, model: ModelSettings) -> SyntheticOptions:
    if scenario.device is not None:
        return SyntheticOptions(**scenario.device.model_dump())
    if model.runtime != "synthetic":
        raise SimSetupError(
            f"device: is missing; {name} is no synthetic model, so say what a batch takes"
        )
    given = {key: value for key, value in model.options.items() if key in _TIMES}
    try:
        return options.parse(SyntheticOptions, given)
    except LoadError as error:
        raise SimSetupError(f"settings.models.{name}.options: {error}") from None


def _description(name: str, model: ModelSettings, device: SyntheticOptions) -> ModelDescription:
    """The model's page as a synthetic replica of these settings would write it."""
    data = with_lengths(model).model_dump() | {
        "runtime": "synthetic",
        "source": None,
        "task": "tensors",
        "image": None,
        "classify": {},
        "accept": {},
        "precision": "fp32",
        "options": {key: getattr(device, key) for key in _TIMES},
    }
    data["lengths"] |= {"input": None, "axis": None, "mask": None}
    stand_in = ModelSettings.model_validate(data)
    settled = runtime_settings(name, stand_in, _NO_FILES, lambda phase, done: None)
    runtime = SyntheticRuntime(settled)
    runtime.load()
    profile = _profile(settled, runtime.limits(), device, model.profile_s)
    description, _ = describe(name, stand_in, "", runtime, KnownCosts(profile))
    runtime.close()
    return description


def _profile(
    settings: RuntimeSettings, limits: Limits, device: SyntheticOptions, seconds: float
) -> Profile:
    """What a replica would have measured after its warm-up, on a clock that only batches move."""
    now = 0.0

    def run_batch(batch: Batch) -> None:
        nonlocal now
        now += service_s(device, batch.rows, int(batch.lengths.max()))

    return measure(settings, limits, run_batch, seconds, lambda: now)


def _terms(
    scenario: Scenario, settings: Settings, description: ModelDescription
) -> dict[str, TenantTerms]:
    known = Tenants(settings.tenants, settings.gateway.priorities)
    declared = {tenant.name: tenant for tenant in known.all}
    found = {}
    for name, part in scenario.callers():
        tenant = declared.get(name)
        if tenant is None:
            raise SimSetupError(
                f"tenants.{name}: {scenario.settings} has no such tenant, but {', '.join(declared)}"
            )
        own = part.budget_ms
        plan = description.scheduling
        found[name] = TenantTerms(
            tenant=tenant,
            slo_s=plan.slo_s if own is None else own / 1e3,
            timeout_s=plan.timeout_s if own is None else own / 1e3,
            priority=_rank(part.priority, tenant, settings.gateway.priorities, name),
            weight=tenant.weight,
            tenant_rows=tenant.max_queue_rows,
            retryable=plan.retry and part.retryable,
        )
    return found


def _rank(asked: str | None, tenant: Tenant, priorities: tuple[str, ...], name: str) -> int:
    """A request may lower its priority, never raise it."""
    if asked is not None and asked not in priorities:
        raise SimSetupError(
            f"tenants.{name}.priority: is {asked!r}; must be one of {', '.join(priorities)}"
        )
    own = priorities.index(tenant.priority)
    return own if asked is None else max(own, priorities.index(asked))
