"""Which rows ask for the same? A 256-bit key of what a row's answer depends on.

That is the model's version, the outputs wanted, and every input's name, datatype, shape and
elements as the model gets them: after masks, truncation and tokenising, so that a text and its
tokens, JSON and binary tensors, padded and unpadded rows have one key. A row, not a request, is the
unit, since a row's answer does not depend on its batch mates (up to the float noise of another
batch shape). Every part is preceded by its size, so that no two inputs run into each other. Whose
the row is, is no part of the key: caches and flights keep tenants apart themselves.

The hash is keyed with a secret of this process: nobody can prepare inputs that collide. Source:
RFC 7693 (BLAKE2).
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from deployments.gateway.http.protocols.tensors import Array
from deployments.gateway.rows.columns import RowColumn, Rows

_SECRET = secrets.token_bytes(32)
_KEY_BYTES = 32


def row_keys(rows: Rows, version: str, outputs: Iterable[str]) -> list[bytes]:
    """One key a row, in order. `outputs`: names of all that the model gives, for rows that want
    all. Takes about 1 ns a byte: large inputs belong in a thread."""
    names = sorted(rows.inputs)
    wanted = sorted(outputs if rows.outputs is None else rows.outputs)
    start = blake2b(key=_SECRET, digest_size=_KEY_BYTES)
    start.update(_texts([version]) + _texts(wanted) + _texts(names))
    start.update(_texts([rows.inputs[name].datatype for name in names]))
    columns = [rows.inputs[name] for name in names]
    keys = []
    for row in range(rows.count):
        one = start.copy()
        one.update(b"".join(_parts(columns, row)))
        keys.append(one.digest())
    return keys


def joint_key(keys: Sequence[bytes]) -> bytes:
    """The key of a request's rows together, in this order."""
    if len(keys) == 1:
        return keys[0]
    return blake2b(b"".join(keys), key=_SECRET, digest_size=_KEY_BYTES, person=b"rows").digest()


def _parts(columns: Sequence[RowColumn], row: int) -> Iterator[bytes]:
    for column in columns:
        elements, shape = column.rows[row], column.shapes[row]
        yield struct.pack(f"<{len(shape) + 1}q", len(shape), *shape)
        if column.datatype == "BYTES":
            yield from _strings(elements)
        else:
            # As many bytes as shape and datatype say: no size needs to precede them.
            yield elements.tobytes()


def _strings(elements: Array) -> Iterator[bytes]:
    strings: list[bytes] = elements.tolist()
    yield struct.pack(f"<{len(strings)}q", *map(len, strings))
    yield from strings


def _texts(texts: Sequence[str]) -> bytes:
    parts = [text.encode() for text in texts]
    return struct.pack(f"<{len(parts) + 1}q", len(parts), *map(len, parts)) + b"".join(parts)
