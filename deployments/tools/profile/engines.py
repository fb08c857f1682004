"""How long a context and how many sequences should an engine that generates be started with?

Its cache is shared out by what a sequence may need at most, and a step takes longer the more
sequences are in it: both bounds are better no larger than the traffic needs. Lengths are prompt and
answer together, tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

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


def most_sequences(
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
