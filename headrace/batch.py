"""The rows that a class is given together, and its answer checked row by row.

Rows of a batch may differ in length. Nothing is padded: a `Column` is one flat array with each
row's shape, and a row is a view of it. `stacked` and `padded` make the dense array that most
libraries take; of rows of equal shape, both are views.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any, overload

import numpy as np

from headrace.declaration import DTYPES, Declared, TensorType

Array = np.ndarray[Any, Any]


class RowError(Exception):
    """One row failed: put it in the row's place in an output; other requests are still answered.

    `invalid`: what the caller sent is wrong (HTTP 400); False: the model failed at it, and the
    caller may send it again (503)."""

    invalid = True

    def __init__(self, message: str, *, invalid: bool = True) -> None:
        super().__init__(message)
        self.invalid = invalid


class AnswerError(Exception):
    """What `predict` returned does not fit the batch or what the class declares."""


class Column(Sequence[Any]):
    """One input of a batch. `flat`: all rows' values, 1-D; `shapes`: each row's. As a sequence, it
    holds the rows: arrays of their own shapes (views of `flat`), `str` of a text, `bytes` of an
    image. Raises `UnicodeDecodeError` for a text that is no UTF-8."""

    __slots__ = ("_starts", "flat", "shapes", "type")

    def __init__(self, of: TensorType, flat: Array, shapes: Sequence[tuple[int, ...]]) -> None:
        self.type, self.shapes = of, tuple(shapes)
        if of.kind == "text":
            texts, flat = flat, np.empty(len(flat), object)
            flat[:] = [bytes(text).decode() for text in texts]
        self.flat = flat.view()
        self.flat.flags.writeable = False  # rows may run again, in halves
        self._starts: list[int] | None = None

    def __len__(self) -> int:
        return len(self.shapes)

    @overload
    def __getitem__(self, row: int) -> Any: ...
    @overload
    def __getitem__(self, row: slice) -> list[Any]: ...
    def __getitem__(self, row: int | slice) -> Any:
        if isinstance(row, slice):
            return list(self)[row]
        place = range(len(self))[row]
        if self._starts is None:
            self._starts = [0, *accumulate(map(prod, self.shapes))]
        return self._row(self._starts[place], self.shapes[place])

    def __iter__(self) -> Iterator[Any]:
        start = 0
        for shape in self.shapes:
            yield self._row(start, shape)
            start += prod(shape)

    def _row(self, start: int, shape: tuple[int, ...]) -> Any:
        if self.type.kind == "text":
            return self.flat[start]
        if self.type.kind == "image":
            return bytes(self.flat[start])
        return self.flat[start : start + prod(shape)].reshape(shape)

    @property
    def stacked(self) -> Array:
        """[rows, *shape], a view. Raises `ValueError` where rows differ in shape."""
        if self.type.kind:
            return np.array(list(self), dtype=object)
        if len(set(self.shapes)) > 1:
            raise ValueError(
                "rows of this batch differ in shape; use padded(), or one row after the other"
            )
        return self.flat.reshape(len(self), *(self.shapes[0] if self.shapes else ()))

    def padded(self, value: Any = None) -> Array:
        """[rows, *longest shape], filled up with `value` (0, of BYTES b"") behind each row; a view
        where rows have one shape."""
        if value is None:
            value = b"" if self.type.datatype == "BYTES" else 0
        if self.type.kind or len(set(self.shapes)) <= 1:
            return self.stacked
        longest = tuple(max(sizes) for sizes in zip(*self.shapes, strict=True))
        made = np.full((len(self), *longest), value, self.flat.dtype)
        for row, values in enumerate(self):
            inside: tuple[Any, ...] = (row, *map(slice, values.shape))
            made[inside] = values
        return made

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        made = self.stacked
        if dtype is not None and dtype != made.dtype:
            if copy is False:
                raise ValueError(f"rows of {made.dtype} are no {dtype} without a copy")
            return made.astype(dtype)
        return made.copy() if copy else made

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {self.type}>"


class Batch(Mapping[str, Any]):
    """The rows of one call of `predict`, by input: a `Column`, or with `padded: true` a dense array
    (a list of a text's or image's rows). `rows`: how many; `lengths`: int64 [rows], as they were
    batched by: the length of the first input with an axis of any length, of a text a quarter of its
    bytes, else 1."""

    def __init__(self, lengths: Array, columns: Mapping[str, Column], padded: bool = False) -> None:
        self.rows, self.lengths = len(lengths), lengths.view()
        self.lengths.flags.writeable = False
        self._columns, self._padded = columns, padded

    def __getitem__(self, name: str) -> Any:
        column = self._columns[name]
        if not self._padded:
            return column
        return list(column) if column.type.kind else column.padded()

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"<batch of {self.rows} rows: {', '.join(self._columns)}>"


class Answer:
    """`outputs`: by name the flat values and shapes of the rows that did not fail, in order;
    `failed`: by row."""

    __slots__ = ("failed", "outputs")

    def __init__(
        self,
        outputs: Mapping[str, tuple[Array, tuple[tuple[int, ...], ...]]],
        failed: Mapping[int, RowError],
    ) -> None:
        self.outputs, self.failed = outputs, failed


def answer(returned: Any, declared: Declared, rows: int, wanted: Sequence[str]) -> Answer:
    """What `predict` returned for a batch of `rows`, checked: every output of the class, a row for
    each row, of its datatype and shape. Raises `AnswerError`."""
    if not isinstance(returned, Mapping):
        if len(declared.outputs) > 1:
            raise AnswerError(
                f"predict returned {_kind(returned)}; must be a dictionary with "
                f"{', '.join(declared.outputs)}"
            )
        returned = {next(iter(declared.outputs)): returned}
    for name in returned:
        if name not in declared.outputs:
            raise AnswerError(
                f"predict returned {name!r}, which is not declared; declared: "
                f"{', '.join(declared.outputs)}"
            )
    given: dict[str, Any] = {}
    failed: dict[int, RowError] = {}
    for name, values in returned.items():
        given[name] = _by_row(values, name)
        if len(given[name]) != rows:
            raise AnswerError(
                f"predict returned {len(given[name])} rows of {name!r} for a batch of {rows}"
            )
        for row, value in enumerate(given[name]) if isinstance(given[name], list) else ():
            if isinstance(value, RowError):
                failed.setdefault(row, value)
    kept = [row for row in range(rows) if row not in failed] if failed else None
    outputs = {}
    for name in wanted:
        if name not in given:
            raise AnswerError(f"predict returned no {name!r}")
        values = given[name] if kept is None else [given[name][row] for row in kept]
        outputs[name] = column(values, declared.outputs[name], name)
    return Answer(outputs, failed)


def _by_row(values: Any, name: str) -> Any:
    """An array whose first axis is the rows, else a list with a value for each row."""
    if isinstance(values, np.ndarray) and not isinstance(values, np.ma.MaskedArray):
        if values.ndim == 0:
            raise AnswerError(
                f"predict returned one value for {name!r}; its first axis must be the batch's rows"
            )
        return values if values.dtype != object else list(values)
    if isinstance(values, list | tuple):
        return list(values)
    if hasattr(values, "numpy") and hasattr(values, "detach"):
        raise AnswerError(
            f"predict returned a tensor for {name!r}; return {name}.detach().cpu().numpy()"
        )
    raise AnswerError(
        f"predict returned {_kind(values)} for {name!r}; must be a NumPy array, or a list with a "
        "value for each row"
    )


def column(values: Any, of: TensorType, name: str) -> tuple[Array, tuple[tuple[int, ...], ...]]:
    """Flat values and each row's shape, of an array [rows, ...] or a list with a value for each
    row. Raises `AnswerError`."""
    if of.datatype == "BYTES":
        made = [_bytes(each, of, name, row) for row, each in enumerate(values)]
        data = np.empty(sum(map(len, (flat for flat, _ in made))), object)
        data[:] = [item for flat, _ in made for item in flat]
        return data, tuple(shape for _, shape in made)
    if isinstance(values, np.ndarray) and values.dtype != object:
        shape = values.shape[1:]
        _check_shape(shape, of, name, 0)
        cast = _cast(np.asarray(values), of, name).reshape(-1)
        # The class may use its array again.
        flat = cast.copy() if np.may_share_memory(cast, values) else cast
        return flat, (shape,) * len(values)
    try:
        rows = [np.asarray(each) for each in values]
    except (TypeError, ValueError, RuntimeError) as error:
        raise AnswerError(
            f"predict returned rows of {name!r} that are no arrays: {error}"
        ) from None
    for row, each in enumerate(rows):
        _check_shape(each.shape, of, name, row)
    parts = [_cast(each, of, name).reshape(-1) for each in rows]
    flat = np.concatenate(parts) if parts else np.empty(0, DTYPES[of.datatype])
    return flat, tuple(each.shape for each in rows)


def _bytes(value: Any, of: TensorType, name: str, row: int) -> tuple[list[bytes], tuple[int, ...]]:
    if isinstance(value, list | tuple):
        value = np.array(value, dtype=object)
    is_array = isinstance(value, np.ndarray)
    items, shape = (value.reshape(-1).tolist(), value.shape) if is_array else ([value], ())
    for item in items:
        if not isinstance(item, str | bytes):
            raise AnswerError(f"row {row} of {name!r} holds {_kind(item)}; must be text or bytes")
    _check_shape(shape, of, name, row)
    try:
        return [item.encode() if isinstance(item, str) else item for item in items], shape
    except UnicodeEncodeError as error:
        raise AnswerError(f"row {row} of {name!r} is no text: {error.reason}") from None


def _check_shape(shape: tuple[int, ...], of: TensorType, name: str, row: int) -> None:
    fits = len(shape) == len(of.shape) and all(
        want in (-1, size) for size, want in zip(shape, of.shape, strict=True)
    )
    if not fits:
        raise AnswerError(f"row {row} of {name!r} has shape {list(shape)}; declared is {of}")


def _cast(values: Array, of: TensorType, name: str) -> Array:
    """`values` itself where it is as declared. Floats may be narrowed (what does not fit becomes
    infinite, which fails the row), whole numbers where all fit. Nothing else changes its kind."""
    wanted = DTYPES[of.datatype]
    if values.dtype == wanted:
        return values
    if not values.size:
        return np.empty(values.shape, wanted)
    kinds = {"b": "b", "u": "iu", "i": "iu", "f": "fiu"}
    is_float = of.datatype in ("FP16", "BF16", "FP32", "FP64")
    kind = "f" if values.dtype == DTYPES["BF16"] else values.dtype.kind
    if kind not in kinds["f" if is_float else wanted.kind]:
        raise AnswerError(
            f"predict returned {values.dtype} for {name!r}; declared is {of.datatype}: convert it, "
            f"or declare what it is"
        )
    if not is_float:
        bounds = np.iinfo(wanted)
        if int(values.min()) < bounds.min or int(values.max()) > bounds.max:
            raise AnswerError(f"a value of {name!r} does not fit into {of.datatype}")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=wanted)


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"
