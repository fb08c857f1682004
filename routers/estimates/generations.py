"""What will a request that generates take: tokens, room in a cache, device seconds?

A plan is made when it comes and kept on its request: the output that it will most likely have (the
median, which is charged and tells short from long) and the one that room is kept for (a higher
quantile), how much of its prompt the replica that knows it best need not read again, and from these
its cost: weighted tokens times the seconds that one is worth on a full replica. Fair in weighted
tokens: input that was not cached, and output, each with its weight. What has been used is learnt
from; nothing here decides who is served or where.

Source: the weights are VTC's (Fairness in Serving LLMs, OSDI'24).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from routers.api.requests import NO_TOKENS, Generation, Request, Tokens
from routers.api.settings import GenerationParameters
from routers.api.snapshot import GenerationSnapshot
from routers.estimates.engine_speed import EngineSpeed
from routers.estimates.output_lengths import OutputLengths
from routers.estimates.prefix_tree import PrefixTree

_MEDIAN = 0.5
_TRUST_GAIN = 0.05
_LEAST_TRUST = 0.02  # so that an engine that begins to cache is noticed
_SESSION_SAVES = 0.5  # of a prompt, what the replica that its session used last is taken to know


@dataclass(slots=True)
class GenerationPlan:
    """Tokens. `most`: its outputs may have; `output`: they are predicted to; `reserve`: room is
    kept for; all over its `sequences`. `cached`: of its prompt, what the replica that knows most of
    it need not read. `waits_at`: the replica that saves room for it, "": none does."""

    tenant: str
    prompt: int
    most: int
    sequences: int
    blocks: tuple[int, ...]
    output: float
    reserve: float
    cached: int = 0
    waits_at: str = ""

    @property
    def room(self) -> float:
        """What it takes of a replica's capacity."""
        return self.prompt + self.reserve

    @property
    def size(self) -> int:
        """What it will have in the cache in the end: by this its bucket is chosen."""
        return self.prompt + ceil(self.output)


@dataclass(slots=True, eq=False)
class RunningGeneration:
    """A lease's generation at its replica. `reads`: tokens of the prompt that its replica has to
    read, 0 once the first token is there; `ahead`: those that it had to read before. `cached`: of
    the prompt, predicted. `token_s`: what a weighted token was worth when it was sent, and is for
    this lease. `told_s`: of what it was served, what the controllers were told. `tokens`: so far.
    `first_s`: predicted seconds to its first token."""

    plan: GenerationPlan
    token_s: float
    cached: int
    reads: float
    ahead: float
    is_long: bool
    tokens: Tokens = NO_TOKENS
    told_s: float = 0.0
    first_at: float | None = None
    at: float = 0.0
    first_s: float = 0.0


class Generations:
    """`token_s`: seconds that a weighted token is worth, on a full replica of the reference group.
    `trust`: of the tokens predicted to be cached, the share that lately was."""

    def __init__(
        self, settings: GenerationParameters, token_s: Callable[[], float], *, frozen: bool
    ) -> None:
        self.settings = settings
        self.token_s = token_s
        self.lengths = OutputLengths(settings.output_tokens)
        self.tree = PrefixTree(settings.max_blocks)
        self.trust = 1.0
        self.adopt(settings, frozen=frozen)

    def adopt(self, settings: GenerationParameters, *, frozen: bool) -> None:
        """Go on under new settings; what was learnt stays."""
        self.settings, self.frozen = settings, frozen
        self.lengths.fixed, self.lengths.frozen = settings.output_tokens, frozen
        self.tree.most = settings.max_blocks

    # -- what is predicted

    def plan(self, request: Request, generation: Generation) -> GenerationPlan:
        prompt, most = request.lengths[0], max(1, generation.max_tokens)
        sequences = max(1, generation.sequences)
        tenant, quantile = request.tenant, self.settings.reserve_quantile
        each, predict = most / sequences, self.lengths.predict
        output = sequences * predict(tenant, prompt, each, _MEDIAN)
        reserve = sequences * predict(tenant, prompt, each, quantile)
        blocks = generation.blocks if self.settings.affinity == "prefix" else ()
        plan = GenerationPlan(tenant, prompt, most, sequences, blocks, output, max(output, reserve))
        if blocks:
            known = self.tree.matches(blocks)
            plan.cached = self.cached(plan, max(known.values(), default=0))
        return plan

    def cost_s(self, plan: GenerationPlan) -> float:
        """Predicted device seconds of all of it."""
        tokens = Tokens(plan.prompt, plan.cached, ceil(plan.output))
        return self.weighted(tokens) * self.token_s()

    def weighted(self, tokens: Tokens) -> float:
        settings = self.settings
        read = max(0, tokens.input - tokens.cached)
        return read * settings.input_weight + tokens.output * settings.output_weight

    def cached(self, plan: GenerationPlan, blocks: int) -> int:
        """Tokens of the prompt that are not read again where so many of its blocks are known."""
        return min(int(self.trust * blocks * self.settings.block_tokens), plan.prompt - 1)

    def known(self, plan: GenerationPlan, replica_id: str, *, session: bool) -> int:
        """Tokens of the prompt that this replica need not read; `session`: it served the last
        request of the same session."""
        cached = self.cached(plan, self.tree.match(replica_id, plan.blocks)) if plan.blocks else 0
        return max(cached, int(_SESSION_SAVES * plan.prompt)) if session else max(0, cached)

    def left(self, plan: GenerationPlan, so_far: int) -> float:
        """Output tokens still to come that room is kept for, of one that has had so many."""
        if so_far > plan.output:
            self._correct(plan, so_far)
        return max(0.0, plan.reserve - so_far)

    def _correct(self, plan: GenerationPlan, so_far: int) -> None:
        """It has got further than was predicted."""
        sequences, quantile = plan.sequences, self.settings.reserve_quantile
        each, had = plan.most / sequences, so_far / sequences
        predict, tenant, prompt = self.lengths.predict, plan.tenant, plan.prompt
        plan.output = sequences * predict(tenant, prompt, each, _MEDIAN, had)
        reserve = sequences * predict(tenant, prompt, each, quantile, had)
        plan.reserve = max(plan.output, reserve)

    # -- what is learnt

    def placed(self, plan: GenerationPlan, replica_id: str, capacity: float) -> int:
        """It goes to this replica; of its prompt, the tokens predicted to be cached there."""
        block_tokens = self.settings.block_tokens
        if not plan.blocks or not block_tokens:
            return 0
        cached = self.cached(plan, self.tree.match(replica_id, plan.blocks))
        self.tree.read(replica_id, plan.blocks, int(capacity // block_tokens))
        return max(0, cached)

    def found(self, predicted: int, cached: int) -> None:
        """So many of its prompt's tokens were cached after all."""
        if predicted > 0 and not self.frozen:
            share = min(1.0, cached / predicted * self.trust)
            self.trust += _TRUST_GAIN * (max(_LEAST_TRUST, share) - self.trust)

    def answered(self, plan: GenerationPlan, output: int) -> None:
        self.lengths.learn(plan.tenant, plan.prompt, output / plan.sequences)

    def forget(self, replica_id: str) -> None:
        """The replica is gone."""
        self.tree.forget(replica_id)

    def snapshot(self, speed: EngineSpeed) -> GenerationSnapshot:
        """`speed`: of the reference group."""
        return GenerationSnapshot(
            tokens_per_s=1.0 / speed.token_s,
            prompt_tokens_per_s=1.0 / speed.prompt_s if speed.prompt_s > 0.0 else 0.0,
            most_leases=speed.most_leases,
            blocks=len(self.tree),
            trust=self.trust,
            histories=len(self.lengths),
        )
