"""What will a request that generates take: tokens, room in a cache, device seconds?

A plan is made when the request arrives and is kept on it. The plan holds the predicted output (the
median, by which the flow is charged and short is told from long), the output that room is reserved
for (a higher quantile), and how much of the prompt the best replica has cached. Its cost is the
weighted tokens times the seconds that one is worth on a full replica. Fair in weighted tokens:
prompt tokens that were not cached, and output tokens, each with its weight. Used tokens are learnt
from; nothing here decides which request is served, or where.

Source: the weights are VTC's (Fairness in Serving LLMs, OSDI'24).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil, log2
from typing import Final

from routers.api.requests import NO_TOKENS, Generation, Request, Tokens
from routers.api.settings import GenerationParameters
from routers.api.snapshot import CachedTokens, GenerationSnapshot
from routers.estimates.adapters import AdapterAccount
from routers.estimates.engine_speed import EngineSpeed
from routers.estimates.prefix_tree import PrefixTree

_MEDIAN: Final = 0.5
_TRUST_GAIN: Final = 0.05
_MIN_TRUST: Final = 0.02  # so that an engine that begins to cache is noticed
_ANSWER_GAIN: Final = 0.02  # the least weight of a new answer in the mean of what requests take
_SESSION_SAVES: Final = 0.5  # of a prompt, assumed to be cached where its session was served last
_MAX_SESSIONS: Final = 10_000


@dataclass(slots=True)
class GenerationPlan:
    """What a request that generates is predicted to take, in tokens over all of its `sequences`."""

    tenant: str
    prompt: int
    most: int  # output tokens that it may have
    sequences: int
    blocks: tuple[int, ...]  # hashes of the prompt's blocks
    output: float  # output tokens that it is predicted to have: the median
    reserve: float  # output tokens that room is kept for
    cached: int = 0  # prompt tokens that the replica that knows most of it need not read
    waits_at: str = ""  # the replica that saves room for it; "": none does
    adapter: str = ""  # that its replica must have; "": none
    session: str = ""  # that it is a turn of; "": none

    @property
    def room(self) -> float:
        """Tokens that it takes of a replica's capacity."""
        return self.prompt + self.reserve

    @property
    def size(self) -> int:
        """Tokens that it will have in the cache in the end; its bucket is chosen by them."""
        return self.prompt + ceil(self.output)


@dataclass(slots=True, eq=False)
class RunningGeneration:
    """A generation that runs at a replica, for one lease."""

    plan: GenerationPlan
    token_s: float  # seconds of a weighted token, as they were when it was sent
    cached: int  # prompt tokens found in the cache: predicted, then as reported
    reads: float  # prompt tokens that its replica has to read; 0 once the first token has come
    ahead: float  # prompt tokens of others that its replica has to read before
    is_long: bool  # its prompt is long
    tokens: Tokens = NO_TOKENS  # so far
    told_s: float = 0.0  # of what it was served, seconds that controllers were told of
    first_at: float | None = None  # when the first token came
    at: float = 0.0  # when the last token came
    first_s: float = 0.0  # predicted seconds to its first token
    loads: bool = False  # its replica has to load its adapter


@dataclass(frozen=True, slots=True)
class _Turn:
    """The last one of a session: its prompt had so many whole blocks, of which this was the last,
    and so many tokens with its answer."""

    blocks: int
    last: int
    tokens: int


class Generations:
    """Plans requests that generate, and learns from them."""

    def __init__(
        self, settings: GenerationParameters, token_s: Callable[[], float], *, frozen: bool
    ) -> None:
        self.settings = settings
        # Seconds of a weighted token on a full replica of the reference group.
        self.token_s = token_s
        self.lengths = OutputLengths(settings.output_tokens)
        self.tree = PrefixTree(settings.max_blocks)
        self.adapters = AdapterAccount(settings.adapters_resident)
        self.trust = 1.0  # of the tokens estimated to be cached, the share that lately was
        self._turns: OrderedDict[str, _Turn] = OrderedDict()  # by session, used least lately first
        # At replicas that tell what they hold, and at the others.
        self.told, self.estimated = CachedTokens(), CachedTokens()
        self._answers = 0
        self._answer_tokens = 0.0  # weighted tokens of a request, mean of those answered lately
        self.adopt(settings, frozen=frozen)

    def adopt(self, settings: GenerationParameters, *, frozen: bool) -> None:
        """Go on under new settings; what was learnt stays."""
        self.settings, self.frozen = settings, frozen
        self.lengths.fixed, self.lengths.frozen = settings.output_tokens, frozen
        self.tree.most = settings.max_blocks
        self.adapters.places = settings.adapters_resident

    # -- what is predicted

    def plan(self, request: Request, generation: Generation) -> GenerationPlan:
        """The plan of a new request."""
        prompt, most = request.lengths[0], max(0, generation.max_tokens)
        sequences = max(1, generation.sequences)
        tenant, quantile = request.tenant, self.settings.reserve_quantile
        each, predict = most / sequences, self.lengths.predict
        output = sequences * predict(tenant, prompt, each, _MEDIAN)
        reserve = sequences * predict(tenant, prompt, each, quantile)
        blocks = generation.blocks if self.settings.affinity == "prefix" else ()
        plan = GenerationPlan(tenant, prompt, most, sequences, blocks, output, max(output, reserve))
        if blocks:
            known = [self.cached(plan, each) for each in self.tree.matches(blocks)]
            plan.cached = max(known, default=0)
        plan.session = request.session
        if self.settings.adapters_resident:
            plan.adapter = generation.adapter
            self.adapters.asked(plan.adapter)
        return plan

    def cost_s(self, plan: GenerationPlan) -> float:
        """Predicted device seconds of the whole request."""
        tokens = Tokens(plan.prompt, plan.cached, ceil(plan.output))
        return self.weighted(tokens) * self.token_s()

    @property
    def request_s(self) -> float:
        """Device seconds of a request, mean of those answered lately; 0.0: none was answered."""
        return self._answer_tokens * self.token_s()

    def weighted(self, tokens: Tokens) -> float:
        """Weighted tokens: prompt tokens that were not cached, and output tokens."""
        settings = self.settings
        read = max(0, tokens.input - tokens.cached)
        return read * settings.input_weight + tokens.output * settings.output_weight

    def cached(self, plan: GenerationPlan, replica_id: str) -> int:
        """Prompt tokens that this replica need not read, by the blocks that are known there."""
        tokens = self.tree.match(replica_id, plan.blocks) * self.settings.block_tokens
        trust = 1.0 if self.tree.is_told(replica_id) else self.trust
        return max(0, min(int(trust * tokens), plan.prompt - 1))

    def known(self, plan: GenerationPlan, replica_id: str, *, session: bool) -> int:
        """Prompt tokens that this replica need not read. `session`: it served the last request of
        the same session. Its answer is not among the blocks that are known. A replica that tells
        what it holds has it, as long as it has all of that request's prompt."""
        cached = self.cached(plan, replica_id)
        if not session:
            return cached
        turn = self._turns.get(plan.session)
        if turn is None or not self.tree.is_told(replica_id):
            return max(cached, int(_SESSION_SAVES * plan.prompt))
        if plan.blocks[turn.blocks - 1 : turn.blocks] != (turn.last,):
            return cached  # the prompt does not go on from there
        holds = self.tree.match(replica_id, plan.blocks) >= turn.blocks
        return max(cached, min(turn.tokens, plan.prompt - 1)) if holds else cached

    def left(self, plan: GenerationPlan, so_far: int) -> float:
        """Output tokens still to come that room is kept for, once `so_far` have come."""
        if so_far > plan.output:
            self._correct(plan, so_far)
        return max(0.0, plan.reserve - so_far)

    def _correct(self, plan: GenerationPlan, so_far: int) -> None:
        """Its output is longer than predicted: predict it anew."""
        sequences, quantile = plan.sequences, self.settings.reserve_quantile
        each, had = plan.most / sequences, so_far / sequences
        predict, tenant, prompt = self.lengths.predict, plan.tenant, plan.prompt
        plan.output = sequences * predict(tenant, prompt, each, _MEDIAN, had)
        reserve = sequences * predict(tenant, prompt, each, quantile, had)
        plan.reserve = max(plan.output, reserve)

    # -- what is learnt

    def placed(self, plan: GenerationPlan, replica_id: str, capacity: float) -> int:
        """The request goes to this replica. Returns the prompt tokens predicted to be cached
        there."""
        block_tokens = self.settings.block_tokens
        if not plan.blocks or not block_tokens:
            return 0
        cached = self.cached(plan, replica_id)
        self.tree.read(replica_id, plan.blocks, int(capacity // block_tokens))
        return cached

    def ended(self, plan: GenerationPlan, replica_id: str) -> None:
        """The request's lease at this replica has closed."""
        if plan.adapter:
            self.adapters.ended(replica_id, plan.adapter)
        self.tree.done(replica_id, plan.blocks)

    def found(self, running: RunningGeneration, cached: int, replica_id: str) -> None:
        """So many of its prompt's tokens were cached at this replica."""
        predicted, told = running.cached, self.tree.is_told(replica_id)
        if running.plan.blocks:
            account = self.told if told else self.estimated
            account.predicted += predicted
            account.found += cached
        if predicted > 0 and not told and not self.frozen:
            share = min(1.0, cached / predicted * self.trust)
            self.trust += _TRUST_GAIN * (max(_MIN_TRUST, share) - self.trust)

    def answered(self, plan: GenerationPlan, tokens: Tokens) -> None:
        """The request has ended after so many tokens."""
        if plan.session and plan.blocks:
            answer = tokens.output // plan.sequences
            turn = _Turn(len(plan.blocks), plan.blocks[-1], tokens.input + answer)
            self._turns[plan.session] = turn
            self._turns.move_to_end(plan.session)
            if len(self._turns) > _MAX_SESSIONS:
                self._turns.popitem(last=False)
        self.lengths.learn(plan.tenant, plan.prompt, tokens.output / plan.sequences)
        if not self.frozen:
            self._answers += 1
            gain = max(_ANSWER_GAIN, 1.0 / self._answers)
            self._answer_tokens += gain * (self.weighted(tokens) - self._answer_tokens)

    def forget(self, replica_id: str) -> None:
        """The replica is gone."""
        self.tree.forget(replica_id)
        self.adapters.forget(replica_id)

    def snapshot(self, speed: EngineSpeed) -> GenerationSnapshot:
        """What is published. `speed`: of the reference group."""
        return GenerationSnapshot(
            tokens_per_s=1.0 / speed.token_s,
            prompt_tokens_per_s=1.0 / speed.prompt_s if speed.prompt_s > 0.0 else 0.0,
            max_leases=speed.max_leases,
            blocks=len(self.tree),
            trust=self.trust,
            told_replicas=self.tree.told_replicas,
            told=replace(self.told),
            estimated=replace(self.estimated),
            histories=len(self.lengths),
        )


_BINS: Final = 8  # to a doubling: within 9 %
_LEAST: Final = 8  # outputs before a history is used
_SPAN: Final = 200.0  # about so many outputs count
_MOST: Final = 1024  # histories
_HEAVIEST: Final = 1e12  # weight at which all weights are divided


@dataclass(slots=True)
class _History:
    """Outputs of one kind: weights by bin, a newer output a little heavier than the one before."""

    bins: list[float] = field(default_factory=list)
    weight: float = 1.0
    outputs: int = 0

    def learn(self, tokens: float) -> None:
        place = _bin(tokens)
        if place >= len(self.bins):
            self.bins += [0.0] * (place + 1 - len(self.bins))
        self.bins[place] += self.weight
        self.outputs += 1
        self.weight *= 1.0 + 1.0 / _SPAN
        if self.weight > _HEAVIEST:
            self.bins = [each / self.weight for each in self.bins]
            self.weight = 1.0

    def quantile(self, quantile: float, beyond: float) -> float | None:
        """The quantile of the outputs longer than `beyond`; None where hardly any was."""
        start = _bin(beyond + 1.0) if beyond > 0.0 else 0
        above = sum(self.bins[start:])
        if above < self.weight:
            return None
        left = quantile * above
        for place in range(start, len(self.bins)):
            left -= self.bins[place]
            if left <= 0.0:
                return _middle(place)
        return _middle(len(self.bins) - 1)


class OutputLengths:
    """Histories of output lengths, by tenant and prompt length. `fixed`: so many tokens are
    expected of each request, and nothing is learnt.

    Quantiles of the lengths that outputs have lately had for prompts of about the same length from
    the same tenant; while fewer than eight of those are known, from all tenants; while those are
    not known either, all that the request may have (`max_tokens`). An output that is longer than
    predicted is predicted anew from the outputs that got as far; beyond all of those, twice what it
    has. Requests whose caller left teach nothing. Memory is bounded: histories used least recently
    are forgotten, and in one history about the last two hundred outputs count.
    Source: quantile prediction for scheduling and reserving, as in SSJF (2024).
    """

    def __init__(self, fixed: int | None = None) -> None:
        self.fixed = fixed
        self.frozen = False
        self._known: OrderedDict[tuple[str, int], _History] = OrderedDict()
        self._all: dict[int, _History] = {}  # by class of prompt lengths, over all tenants

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, tenant: str, length: int, tokens: float) -> None:
        """A prompt of this length and tenant has had an output of so many tokens."""
        if self.frozen or self.fixed is not None or tokens < 1.0:
            return
        kind = _class(length)
        self._all.setdefault(kind, _History()).learn(tokens)
        history = self._known.get((tenant, kind))
        if history is None:
            history = self._known[tenant, kind] = _History()
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        self._known.move_to_end((tenant, kind))
        history.learn(tokens)

    def predict(
        self, tenant: str, length: int, most: float, quantile: float, so_far: float = 0.0
    ) -> float:
        """The quantile of the tokens in all: at most `most`, and more than `so_far` (unless that is
        `most`)."""
        if so_far >= most or quantile >= 1.0:
            return most
        if self.fixed is not None:
            return min(most, max(float(self.fixed), _further(so_far)))
        kind = _class(length)
        for history in (self._known.get((tenant, kind)), self._all.get(kind)):
            if history is None or history.outputs < _LEAST:
                continue
            found = history.quantile(quantile, so_far)
            return min(most, _further(so_far) if found is None else max(found, so_far + 1.0))
        return most


def _further(so_far: float) -> float:
    """The guess for an output that is longer than all known ones."""
    return 2.0 * so_far


def _class(length: int) -> int:
    """Class of a prompt's length: within a factor of four, prompts are alike."""
    return (max(1, length).bit_length() + 1) // 2


def _bin(tokens: float) -> int:
    return int(_BINS * log2(tokens)) if tokens > 1.0 else 0


def _middle(place: int) -> float:
    return float(ceil(2.0 ** ((place + 0.5) / _BINS)))
