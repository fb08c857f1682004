"""Which prompts begin alike? Hashes of a prompt's whole blocks of tokens, each of all before it.

Two prompts share as many blocks from their start as their hashes are alike from the start. A hash
has 64 bits: where two blocks are taken for one, that costs a wrong preference and nothing else. It
is the same in every process, whatever its hash seed. A last block that is not full has none:
engines share whole blocks only. Source: vLLM's automatic prefix caching.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

_BYTES = 8


def blocks_of(token_ids: Sequence[int], block_tokens: int) -> tuple[int, ...]:
    """One hash a whole block, the first block first; none where `block_tokens` is 0. Raises
    OverflowError for an id outside 0 .. 2^32 - 1."""
    if block_tokens < 1:
        return ()
    tokens = array("I", token_ids)
    data, step = tokens.tobytes(), block_tokens * tokens.itemsize
    so_far = blake2b(digest_size=_BYTES)
    found = []
    for end in range(step, len(data) + 1, step):
        so_far.update(data[end - step : end])
        found.append(int.from_bytes(so_far.copy().digest(), "little"))
    return tuple(found)
