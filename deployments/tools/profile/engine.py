"""Recommends an engine's settings for a model that generates, from recorded lengths.

Its cache is shared out by what a sequence may need at most, and a step takes longer the more
sequences are in it: both bounds are better no larger than the traffic needs. A context follows from
the lengths alone (prompt and answer together, tokens); how many sequences at once from what steps
take, which is measured on the live engine as a starting replica would. Nothing is stored.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil

from deployments.replica import backend_env
from deployments.tools.profile.errors import CannotProfile
from deployments.tools.profile.subject import ChosenModel
from loadtests.report.table import aligned
from loadtests.results.report_table import Table
from runtimes import catalog
from runtimes.errors import RuntimeFault
from runtimes.profiling import Profile, measure_stream

SPARE = 1.15  # above the longest that was served
TIGHT_S = 0.2  # a budget from which on down the number of sequences is looked at
_QUANTILES = (0.999, 0.99, 0.95, 0.9)


@dataclass(frozen=True, slots=True)
class Choice:
    """A context of `tokens` would refuse the share `refused` of the requests."""

    tokens: int
    refused: float


@dataclass(frozen=True, slots=True)
class Contexts:
    """`proposed`: the longest served and 15 % more, no more than the model's own; `shorter`: what
    each shorter one would refuse, longest first."""

    proposed: Choice
    longest: int
    shorter: tuple[Choice, ...]


def contexts(lengths: Sequence[int], most: int | None = None) -> Contexts:
    """`most`: what the model takes at most. Raises ValueError of no lengths."""
    if not lengths:
        raise ValueError("no lengths were given")
    ordered = sorted(lengths)
    longest = ordered[-1]
    proposed = min(ceil(longest * SPARE), most or longest * 2)
    shorter = sorted({ordered[ceil(q * len(ordered)) - 1] for q in _QUANTILES}, reverse=True)
    return Contexts(
        _choice(proposed, ordered), longest,
        tuple(_choice(tokens, ordered) for tokens in shorter if tokens < min(proposed, longest)),
    )  # fmt: skip


def _choice(tokens: int, lengths: Sequence[int]) -> Choice:
    return Choice(tokens, sum(length > tokens for length in lengths) / len(lengths))


def max_sequences(
    steps: Iterable[tuple[int, int, float]], step_s: float, declared: int, budget_s: float
) -> int:
    """Sequences at once. `steps`: (running sequences, tokens of the step, seconds) as measured;
    `step_s`: what a step may take. Lower than `declared` only where the budget is under 200 ms and
    steps with more sequences were measured to take longer; at least 1."""
    if budget_s >= TIGHT_S:
        return declared
    found = sorted((running, seconds) for running, _, seconds in steps)
    too_slow = [running for running, seconds in found if seconds > step_s]
    if not too_slow:
        return declared
    within = [running for running, _ in found if running < min(too_slow)]
    return max(1, min(declared, max(within, default=1)))


@dataclass(frozen=True, slots=True)
class EngineFindings:
    """`steps`: (running sequences, tokens, seconds); `declared`: sequences that the engine takes;
    `proposed`: those that the budget for a token allows; `budget_s`: None where none is promised.
    """

    contexts: Contexts
    steps: Profile
    declared: int
    proposed: int
    budget_s: float | None


def show(found: ChosenModel, seconds: float, *, as_json: bool) -> int:
    """The exit code. Raises CannotProfile."""
    try:
        made = asyncio.run(_measured(found, seconds))
    except RuntimeFault as error:
        raise CannotProfile(str(error)) from None
    if as_json:
        print(json.dumps({"model": found.name, **asdict(made)}))
        return 0
    for table in (steps_table(found, made), contexts_table(found, made)):
        print("\n".join([table.caption, "", *aligned(table), ""]))
    print("\n".join(sentences(found, made)))
    return 0


async def _measured(found: ChosenModel, seconds: float) -> EngineFindings:
    backend_env.set_compiler_cache(found.cache_dir)
    backend_env.set_engine_variables(found.settings)
    runtime = catalog.create_stream(found.settings)
    try:
        await runtime.load()
        await runtime.warm()
        limits = runtime.limits()
        steps = await measure_stream(found.name, runtime, seconds)
    finally:
        await runtime.close()
    tpot_ms, most = found.model.slo.tpot_ms, limits.max_sequences
    budget_s = None if tpot_ms is None else tpot_ms / 1e3
    # A step of decoding gives each of its sequences one token: it may take what a token may.
    decoding = [step for step in steps if step[0] == step[1]]
    proposed = most if budget_s is None else max_sequences(decoding, budget_s, most, budget_s)
    proposal = contexts(found.lengths.all, limits.context_tokens)
    return EngineFindings(proposal, steps, most, proposed, budget_s)


def steps_table(found: ChosenModel, made: EngineFindings) -> Table:
    rows = tuple(
        (running, tokens, took_s * 1e3, tokens / took_s) for running, tokens, took_s in made.steps
    )
    return Table(
        f"{found.name}: steps of the engine",
        ("sequences", "tokens of the step", "ms", "tokens/s"),
        rows,
    )


def contexts_table(found: ChosenModel, made: EngineFindings) -> Table:
    choices = (made.contexts.proposed, *made.contexts.shorter)
    rows = tuple(
        (each.tokens, f"{each.refused * 100:.2f} %", "proposed" if not place else "")
        for place, each in enumerate(choices)
    )
    return Table(
        f"Contexts for {len(found.lengths.all):,} requests of {found.lengths.said}",
        ("max_model_len", "would refuse", ""),
        rows,
    )


def sentences(found: ChosenModel, made: EngineFindings) -> Iterator[str]:
    """What to set, and why."""
    proposed, own = made.contexts.proposed, found.model.lengths.max
    yield (
        f"max_model_len: {proposed.tokens:,}; the longest served had {made.contexts.longest:,} "
        "tokens, and 15 % are left above it as far as the model takes more."
    )
    if own < made.contexts.longest:
        share = sum(length > own for length in found.lengths.all) / len(found.lengths.all)
        yield f"lengths.max is {own:,} and refuses {share:.2%} of them."
    elif own > proposed.tokens:
        yield f"lengths.max is {own:,}, more than they need: lower it with max_model_len."
    if made.budget_s is None:
        yield f"max_num_seqs: {made.declared} as it is; no slo.tpot_ms is promised."
    elif made.budget_s >= TIGHT_S:
        yield f"max_num_seqs: {made.declared} as it is; a token has {made.budget_s * 1e3:g} ms."
    elif made.proposed == made.declared:
        yield f"max_num_seqs: {made.declared} as it is; no measured step takes over slo.tpot_ms."
    else:
        yield (
            f"max_num_seqs: {made.proposed} instead of {made.declared}; steps of more were "
            f"measured to take over slo.tpot_ms ({made.budget_s * 1e3:g} ms)."
        )
