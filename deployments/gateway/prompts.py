"""A prompt's length, the output it leaves room for, and the hashes of its blocks.

Counted as the engine will count, as far as a gateway can: a chat's template is the engine's, so
what it adds is an allowance, and only what cannot fit into the context in any case is refused here.
Prompts that begin alike have equal first blocks; an adapter has blocks of its own, since what it
makes of a prompt is its own too. A model without a tokeniser counts four bytes as a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np

from deployments.contract.description import Generating, ModelDescription
from deployments.contract.errors import BadRequest, ContextTooLong, TooManyTokens
from deployments.gateway.http.protocols.openai_generation import GenerationCall
from deployments.gateway.queues.pending_requests import Prompt
from routers.api.requests import Generation
from routers.estimates.prefix_tree import blocks_of

_BYTES_PER_TOKEN = 4
_SEQUENCES, _ROUNDS = 128, 4  # of one request: OpenAI's `n`, or so many times what runs at once
# The largest answer that comes in one piece: the gateway holds it two or three times as it passes
# on. A log-probability has 50 to 100 bytes, and takes an engine's layer 7 us.
MAX_ANSWER_BYTES, MAX_LOGPROBS = 16 << 20, 65_536
_ANSWER_BYTES_PER_TOKEN = 8
Ids = Sequence[int] | np.ndarray[Any, Any]


def prompt_of(
    call: GenerationCall,
    ids: Sequence[Ids],
    d: ModelDescription,
    tenant: str = "",
    fingerprint: bytes = b"",
) -> Prompt:
    """`ids`: the tokens of each of the call's prompts. `fingerprint`: of the call. Raises
    ContextTooLong, and BadRequest for more than one replica holds at once."""
    assert d.generating is not None
    salt = "" if d.generating.shared_prefixes else tenant
    if not call.generates:  # nothing of it comes into the cache
        return Prompt(call.endpoint, call.body, 1, Generation(0), False, 0, salt, fingerprint)
    context = d.generating.context_tokens
    lengths = [_length(call, len(each), context) for each in ids]
    longest = max(lengths)
    if longest + (call.max_tokens or 0) > context:
        raise _too_long(call, longest, context)
    _check_together(call, sum(lengths), d.generating)
    # A row is no longer than the longest one that the model takes, however many prompts it has.
    tokens = min(sum(lengths) + call.extra_tokens, d.max_length)
    left = max(context - longest - call.extra_tokens, 1)
    each = min(_max_output(call, d) or left, left)
    _check_answer(call, sum(lengths), each)
    blocks = () if call.truncate_tokens is not None else _blocks(ids[0], call, d, salt)
    # Many sequences may be more than a cache holds at once: the engine then makes them in turn.
    room = max(d.generating.cache_tokens - tokens, 1)
    most = min(each * call.sequences, room)
    generation = Generation(most, call.sequences, blocks, call.adapter)
    total = sum(lengths) + call.extra_tokens
    return Prompt(
        call.endpoint, call.body, max(tokens, 1), generation, call.streams, total, salt,
        fingerprint, len(ids[0]),
    )  # fmt: skip


def pseudo_ids(texts: Sequence[str]) -> list[Ids]:
    """Of texts that no tokeniser is known for: equal beginnings have equal ids."""
    return [_chunks(text.encode("utf-8", "replace")) for text in texts]


def too_many(call: GenerationCall, refusal: TooManyTokens, d: ModelDescription) -> BadRequest:
    """OpenAI's words for what a tokeniser refused as too long."""
    assert d.generating is not None
    return ContextTooLong(
        f"This model's maximum context length is {d.generating.context_tokens} tokens. However, "
        f"your {call.param} resulted in {refusal.count} tokens. Please reduce the "
        f"length of the {call.param}.",
        param=call.param,
    )


def _max_output(call: GenerationCall, d: ModelDescription) -> int:
    """Output tokens of a sequence, 0: what the context leaves."""
    if call.max_tokens is not None:
        return max(call.max_tokens, 1)
    return d.scheduling.max_output_tokens


def _check_together(call: GenerationCall, tokens: int, generating: Generating) -> None:
    """A request is one to the queue: it waits, is counted and is placed as a whole."""
    most = max(_SEQUENCES, _ROUNDS * generating.max_sequences)
    if call.sequences > most:
        raise BadRequest(
            f"the request asks for {call.sequences} sequences (prompts times n); this model "
            f"takes {most} at most. Send them in several requests.",
            param=call.param,
        )
    if tokens > generating.cache_tokens:
        raise BadRequest(
            f"the prompts have {tokens} tokens together; this model takes "
            f"{generating.cache_tokens} at most. Send them in several requests.",
            param=call.param,
        )


def _check_answer(call: GenerationCall, prompts: int, each: int) -> None:
    """Raises BadRequest where one piece of the answer may be too large. A stream's are those of a
    step, or of as many as the caller asks for, but for the log-probabilities of the prompt, which
    all come with its first."""
    count = max(len(call.texts or call.tokens or ()), 1)
    logprobs = prompts * call.prompt_logprobs * call.sequences // count
    # A response's last events have all of it once more.
    in_pieces = call.streams and call.endpoint != "responses"
    tokens = min(call.interval, each) * call.sequences if in_pieces else each * call.sequences
    logprobs += tokens * call.logprobs
    if logprobs <= MAX_LOGPROBS and tokens * _ANSWER_BYTES_PER_TOKEN <= MAX_ANSWER_BYTES:
        return
    asked = f"{call.sequences} sequences of up to {each} tokens"
    if logprobs > MAX_LOGPROBS:
        raise BadRequest(
            f"the answer may have {logprobs} log-probabilities ({asked}); {MAX_LOGPROBS} may come "
            f"in one piece. Set {call.most}, ask for fewer, or stream the answer.",
            param="prompt_logprobs" if call.prompt_logprobs else "logprobs",
        )
    raise BadRequest(
        f"the answer may have {tokens} tokens ({asked}); "
        f"{MAX_ANSWER_BYTES // _ANSWER_BYTES_PER_TOKEN} may come in one piece. Set {call.most}, "
        "ask for fewer sequences, or stream the answer.",
        param="n",
    )


def _length(call: GenerationCall, tokens: int, context: int) -> int:
    """-1 cuts a prompt to what its answer leaves of the context."""
    cut = call.truncate_tokens
    if cut is None:
        return tokens
    return min(tokens, max(context - (call.max_tokens or 0), 1) if cut < 0 else cut)


def _blocks(ids: Ids, call: GenerationCall, d: ModelDescription, salt: str) -> tuple[int, ...]:
    assert d.generating is not None
    block_tokens, adapter = d.generating.block_tokens, call.adapter
    blocks = blocks_of(ids if isinstance(ids, list) else ids.tolist(), block_tokens)  # type: ignore[union-attr]
    if not adapter and not salt:
        return blocks
    # Of the adapter's content: another content has read nothing yet.
    digests = dict(zip(d.generating.adapters, d.generating.adapter_digests, strict=False))
    own = crc32(f"{adapter}@{digests.get(adapter, '')}\0{salt}".encode("utf-8", "replace"))
    return tuple(block ^ own for block in blocks)


def _chunks(data: bytes) -> np.ndarray[Any, Any]:
    padded = data + bytes(-len(data) % _BYTES_PER_TOKEN)
    return np.frombuffer(padded, dtype="<u4")


def _too_long(call: GenerationCall, tokens: int, context: int) -> ContextTooLong:
    part = call.param
    more = call.max_tokens or 0
    return ContextTooLong(
        f"This model's maximum context length is {context} tokens. However, you requested "
        f"{tokens + more} tokens ({tokens} in the {part}, {more} in the completion). Please reduce "
        f"the length of the {part} or completion.",
        param=call.param,
    )
