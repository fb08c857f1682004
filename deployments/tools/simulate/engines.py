"""A model that generates, as a simulation has it: its page, its engine, its prompts.

The page is what a replica would write of an engine with these times and this cache; nothing is
loaded. Prompts have no words here: which of them begin alike is a matter of whose they are. All of
a tenant's share its `prefix_tokens`, those of one session the session's; every other block is its
request's own.
"""

from __future__ import annotations

from zlib import crc32

from deployments.contract.description import Generating, ModelDescription
from deployments.replica.scheduling import scheduling
from deployments.settings.lengths import bucket_edges
from deployments.settings.model import ModelSettings
from loadtests.traffic.plan import Planned
from loadtests.traffic.scenario import Scenario, TenantPart
from loadtests.traffic.scenario_faults import EnginePart
from routers.api.requests import Generation
from routers.api.settings import GenerationParameters
from runtimes.synthetic.engine import EngineShape

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


def row_cost_s(
    settings: GenerationParameters, engine: EngineShape, prompt: int, output: int
) -> float:
    """SimDevice seconds that a generation is worth: weighted tokens, at what one takes of an engine
    that gives tokens to half of the sequences that it may run."""
    running = max(1.0, engine.max_sequences / 2)
    token_s = (engine.base_s / running + engine.sequence_s) / settings.output_weight
    return token_s * (settings.input_weight * prompt + settings.output_weight * output)
