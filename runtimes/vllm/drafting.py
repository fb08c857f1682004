"""Do proposals pay at this many sequences? Measured while the engine serves.

`off_above: measured`: for each range of sequences in a step (1, 2, 3 to 4, 5 to 8, …) the engine's
own steps say how many tokens a second come with proposals and without. What gives more is kept, and
the other is tried again for `TRIAL` steps in each `STAY`, because texts change. Only steps count in
which every sequence writes, and whose neighbours were of the same kind. Leans on vLLM 0.32's
insides, where the scheduler looks up how many tokens to propose. Works in the engine's process.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

TRIAL = 24  # steps
STAY = 1_500
_SETTLING = 3  # steps after a change that count for neither side
_FADES = 0.995  # what a step's measurement is worth one step later
_GAIN = 1.02  # the other side must be so much faster to be taken


@dataclass(slots=True)
class _Range:
    """Of numbers of sequences. `tokens`, `seconds`: without proposals, with them; of late."""

    proposes: bool = True
    tries: bool = False  # the side that is not the chosen one
    left: int = TRIAL
    settling: int = _SETTLING
    tokens: list[float] = field(default_factory=lambda: [0.0, 0.0])
    seconds: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def step(self, tokens: int, took_s: float) -> bool:
        """Whether the side has changed."""
        if self.settling:
            self.settling -= 1
            return False
        side = self.proposes
        self.tokens[side] = self.tokens[side] * _FADES + tokens
        self.seconds[side] = self.seconds[side] * _FADES + took_s
        self.left -= 1
        if self.left:
            return False
        if not self.tries:
            self._change(TRIAL)
            self.tokens[self.proposes] = self.seconds[self.proposes] = 0.0
            self.tries = True
            return True
        self.tries = False
        if self._rate(self.proposes) > self._rate(not self.proposes) * _GAIN:
            self.left = STAY
            return False
        self._change(STAY)
        return True

    def _rate(self, side: bool) -> float:
        return self.tokens[side] / self.seconds[side]

    def _change(self, steps: int) -> None:
        self.proposes, self.left, self.settling = not self.proposes, steps, _SETTLING


class Drafting:
    """`lookup`: by the number of sequences in a step, the tokens to propose; `most` or 0, and
    written here."""

    def __init__(self, lookup: list[int], most: int) -> None:
        self._lookup = lookup
        self._most = most
        self._ranges = [_Range() for _ in range((len(lookup) - 1).bit_length() + 1)]

    def step(self, sequences: int, tokens: int, took_s: float) -> None:
        """A step in which so many sequences wrote so many tokens."""
        which = (sequences - 1).bit_length()
        found = self._ranges[which]
        if took_s > 0 and found.step(tokens, took_s):
            first, end = (1 << which >> 1) + 1, min((1 << which) + 1, len(self._lookup))
            for at in range(first, end):
                self._lookup[at] = self._most * found.proposes


class ChoosesDrafting:
    """Part of a scheduler: what it does besides vLLM's own. Unless `off_above` is `measured`, which
    stands as one range for all numbers of sequences, nothing."""

    _drafting: Drafting | None = None
    _ended = 0.0  # when the step before did; 0.0: nothing ran

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        own: Any = self
        asked = own.vllm_config.speculative_config
        ranges = getattr(asked, "num_speculative_tokens_per_batch_size", None)
        if ranges is not None and len(ranges) == 1:
            self._drafting = Drafting(own.dynamic_sd_lookup, own.num_spec_tokens)

    def update_from_output(self, scheduled: Any, ran: Any) -> Any:
        outputs = super().update_from_output(scheduled, ran)  # type: ignore[misc]
        if self._drafting is None:
            return outputs
        now, before, own = time.perf_counter(), self._ended, self
        if before and _only_writes(scheduled):
            written = sum(
                len(each.new_token_ids) for part in outputs.values() for each in part.outputs
            )
            self._drafting.step(len(scheduled.num_scheduled_tokens), written, now - before)
        self._ended = now if own.has_unfinished_requests() else 0.0  # type: ignore[attr-defined]
        return outputs


def _only_writes(scheduled: Any) -> bool:
    """Whether no sequence of the step read a part of its prompt."""
    proposed = scheduled.scheduled_spec_decode_tokens
    return bool(scheduled.num_scheduled_tokens) and all(
        tokens == 1 + len(proposed.get(request, ()))
        for request, tokens in scheduled.num_scheduled_tokens.items()
    )
