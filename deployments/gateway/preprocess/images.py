"""How do one request's images become rows without holding up anybody?

On the pool's threads, tenants in turn: an image of some size is a turn of its own, small ones share
one; another tenant's image waits for no more than the turns that run. What is wrong with an image
names its place in the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deployments.contract.description import ImageInput
from deployments.contract.preprocess.images import Array, Encoded, prepared
from deployments.gateway.preprocess.fair_thread_pool import FairThreadPool

TURN_BYTES = 32_768
TURN_IMAGES = 16


async def prepare_images(
    pool: FairThreadPool, tenant: str, how: ImageInput, images: Sequence[Encoded]
) -> list[Array]:
    """One row an image, of the model's datatype and of the shape of one of its sizes, in order.
    Raises `BadRequest`, and `Overloaded` by a full pool."""

    def turn(piece: list[tuple[int, Encoded]]) -> list[Array]:
        return [prepared(how, image, f"image {index}") for index, image in piece]

    turns = await pool.run_each(tenant, turn, list(_pieces(images)))
    return [row for rows in turns for row in rows]


def _pieces(images: Sequence[Encoded]) -> Iterator[list[tuple[int, Encoded]]]:
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
