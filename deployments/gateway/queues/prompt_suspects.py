"""Which prompt has ended the replicas that it was on, among those that ran beside each other?

All prompts on a lost replica are suspect; an answer acquits. A prompt is convicted by

- the second loss, where it was alone on the replica;
- the third, where the others that were there had been on fewer lost replicas, or had tokens already
  while it had none;
- the fifth, whoever was there.

Where another gateway may have had something on the replica, no prompt counts as alone. Suspects
that come again run one at a time (`suspect_permits`), so that a third loss has one cause. Decides
from what this gateway saw and others have told it; changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALONE, BESIDE, ANYWAY = 2, 3, 5  # losses that convict
OTHERS_MISSED = 1  # another gateway's prompt that was on all but so many of them may be the cause


@dataclass(frozen=True, slots=True)
class PromptSuspect:
    """A prompt on a replica that was lost."""

    key: bytes  # its fingerprint
    tenant: str
    lost: frozenset[str]  # all replicas that were lost with it, this one included
    reading: bool  # no token of its answer had come


def convicts(suspect: PromptSuspect, there: Sequence[PromptSuspect], *, sole: bool) -> bool:
    """Whether the loss convicts this prompt. `there`: all prompts of this gateway on the replica,
    this one included. `sole`: no other gateway can have had anything on the replica."""
    losses = len(suspect.lost)
    if sole and len(there) == 1:
        return losses >= ALONE
    if losses < BESIDE or losses >= ANYWAY:
        return losses >= ANYWAY
    rivals = [each for each in there if each.key != suspect.key and len(each.lost) >= losses]
    return not rivals or (suspect.reading and not any(each.reading for each in rivals))
