"""One request's texts as tokens and its images as rows, in turns that hold nobody up.

Known texts are looked up at once. What little is left is tokenised on the event loop when that is
cheaper than asking a thread (a hop costs 25 µs when the thread sleeps, 100 characters 20 µs); the
rest goes to the pool in turns of about a millisecond, so that a request of 2,048 texts is many
turns and another tenant's single text slips in between. An image of some size is a turn of its own,
small ones share one. What is wrong with an image names its place in the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from deployments.contract.description import ImageInput
from deployments.gateway.tenancy.fair_thread_pool import FairThreadPool
from deployments.preprocess.images import Array, Encoded, prepared
from deployments.preprocess.pairs import IdArray
from deployments.preprocess.tokenizer import TextTokenizer

INLINE_CHARS = 100
TURN_CHARS = 4096
TURN_TEXTS = 64

Piece = list[tuple[int, str]]
TURN_BYTES = 32_768
TURN_IMAGES = 16


async def encode_texts(
    pool: FairThreadPool, tenant: str, tokenizer: TextTokenizer, texts: Sequence[str]
) -> list[IdArray]:
    """int64 ids of each text, in order. Raises `BadRequest`, and `Overloaded` by a full pool."""
    encoded = tokenizer.cached(texts, tenant)
    missing = [(index, texts[index]) for index, ids in enumerate(encoded) if ids is None]
    if not missing:
        return [ids for ids in encoded if ids is not None]
    if sum(len(text) for _, text in missing) <= INLINE_CHARS:
        fresh = iter(tokenizer.tokenize(missing, tenant))
    else:
        tokenize = partial(tokenizer.tokenize, tenant=tenant)
        turns = await pool.run_each(tenant, tokenize, list(text_turns(missing)))
        fresh = (ids for turn in turns for ids in turn)
    return [ids if ids is not None else next(fresh) for ids in encoded]


def text_turns(texts: Sequence[tuple[int, str]]) -> Iterator[Piece]:
    """Cuts into turns: at most `TURN_TEXTS` texts and, but for a single text, `TURN_CHARS`."""
    piece: Piece = []
    chars = 0
    for item in texts:
        if piece and (len(piece) == TURN_TEXTS or chars + len(item[1]) > TURN_CHARS):
            yield piece
            piece, chars = [], 0
        piece.append(item)
        chars += len(item[1])
    if piece:
        yield piece


async def prepare_images(
    pool: FairThreadPool, tenant: str, how: ImageInput, images: Sequence[Encoded]
) -> list[Array]:
    """One row an image, of the model's datatype and of the shape of one of its sizes, in order.
    Raises `BadRequest`, and `Overloaded` by a full pool."""

    def turn(piece: list[tuple[int, Encoded]]) -> list[Array]:
        return [prepared(how, image, f"image {index}") for index, image in piece]

    turns = await pool.run_each(tenant, turn, list(_image_turns(images)))
    return [row for rows in turns for row in rows]


def _image_turns(images: Sequence[Encoded]) -> Iterator[list[tuple[int, Encoded]]]:
    piece: list[tuple[int, Encoded]] = []
    size = 0
    for index, image in enumerate(images):
        own = len(image) if isinstance(image, bytes) else image.nbytes
        if piece and (len(piece) == TURN_IMAGES or size + own > TURN_BYTES):
            yield piece
            piece, size = [], 0
        piece.append((index, image))
        size += own
    if piece:
        yield piece
