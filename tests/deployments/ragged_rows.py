"""Ragged tensors of a few rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from runtimes.types import Ragged


def ragged(
    datatype: str,
    rows: Sequence[np.ndarray[Any, Any]],
    shapes: tuple[tuple[int, ...], ...] | None = None,
) -> Ragged:
    """`rows`: flat. `shapes` None: each row has one axis."""
    return Ragged(datatype, np.concatenate(rows), shapes or tuple((len(row),) for row in rows))


def same(one: Ragged, other: Ragged) -> bool:
    kept = (one.datatype, one.shapes) == (other.datatype, other.shapes)
    return kept and one.data.tolist() == other.data.tolist()
