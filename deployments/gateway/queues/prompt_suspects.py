"""Which prompts have ended the replicas that they were on, of those that ran beside each other?

All that were on a lost replica are suspect; an answer acquits. A prompt is convicted by the second
loss where nobody else was there; by the third where the others that were there had been on fewer
lost replicas, or had tokens already and it had none; by the fifth whoever was there. Suspects that
come again run one at a time (`suspect_permits`), so that a third loss has one cause. It decides by
what this gateway saw and others have told; where others may have had something on the replica,
nobody was alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALONE, BESIDE, ANYWAY = 2, 3, 5  # losses that convict
OTHERS_MISSED = 1  # a prompt elsewhere that was on all but so many of the replicas may be the cause


@dataclass(frozen=True, slots=True)
class PromptSuspect:
    """A prompt on a replica that was lost. `lost`: all that were lost with it, this one too.
    `reading`: no token of its answer had come."""

    key: bytes
    tenant: str
    lost: frozenset[str]
    reading: bool


def convicts(suspect: PromptSuspect, there: Sequence[PromptSuspect], *, sole: bool) -> bool:
    """Whether the loss convicts this one of all that were `there`, as far as this gateway knows.
    `sole`: no other gateway can have had anything on the replica."""
    losses = len(suspect.lost)
    if sole and len(there) == 1:
        return losses >= ALONE
    if losses < BESIDE or losses >= ANYWAY:
        return losses >= ANYWAY
    rivals = [each for each in there if each.key != suspect.key and len(each.lost) >= losses]
    return not rivals or (suspect.reading and not any(each.reading for each in rivals))
