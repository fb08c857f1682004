"""TensorFlow Serving's `:predict`: values without types, given their types by the model.

Row format `{"instances": [...]}` answers `{"predictions": [...]}`, columnar `{"inputs": ...}`
answers `{"outputs": ...}`. An instance is an object of inputs by name or, where the model needs
one input only, that input's bare value; `{"b64": ...}` stands for bytes. Rows may differ in length:
each becomes a row of its own and nobody pads. `signature_name` and unknown keys are ignored. All of
the model's outputs are answered; BYTES that are no UTF-8 text are written as `{"b64": ...}`.

Source: TensorFlow Serving, "RESTful API", predict.
"""

from __future__ import annotations

import base64
import sys
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np
import orjson

from deployments.contract.description import ModelDescription
from deployments.contract.errors import BadRequest, RowFailed
from deployments.gateway.http.body import bound_of
from deployments.gateway.http.large_answers import LargeAnswer, Parts, listed, nested
from deployments.gateway.http.protocols import json_body
from deployments.gateway.http.protocols.tensors import (
    HALVES,
    Encoded,
    PredictCall,
    documented,
    row_from_json,
)
from deployments.gateway.http.row_conversion import RowsOut, check_count, from_rows
from deployments.gateway.rows import Array, Rows
from runtimes.types import TensorSpec

_ROWS = documented(
    "Rows: values, or objects of them by input. They may differ in length.", minItems=1
)
_COLUMNS = documented("Columns: each input's rows, by its name where there are several.")


class PredictRequest(msgspec.Struct, gc=False):
    instances: Annotated[list[Annotated[msgspec.Raw, documented()]] | None, _ROWS] = None
    inputs: Annotated[msgspec.Raw, _COLUMNS] = msgspec.field(default_factory=msgspec.Raw)


_bodies = msgspec.json.Decoder(PredictRequest)
_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _LongRequest(msgspec.Struct, gc=False):
    instances: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    inputs: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


_few = msgspec.json.Decoder(list[msgspec.Raw] | None)
_long_bodies = msgspec.json.Decoder(_LongRequest)


def _from_long(body: bytes, max_rows: int) -> PredictRequest:
    """As decoding it whole, but makes no more rows than may be taken, and one."""
    long = _long_bodies.decode(body)
    instances = long.instances
    if not len(memoryview(instances)):
        return PredictRequest(None, long.inputs)
    if not json_body.is_long(instances):
        return PredictRequest(_few.decode(instances), long.inputs)
    return PredictRequest(_rows(instances, max_rows), long.inputs)


def _rows(raw: msgspec.Raw, max_rows: int) -> list[msgspec.Raw]:
    return json_body.rows(raw, min(max_rows, len(memoryview(raw))))


def decode(body: bytes, max_rows: int = sys.maxsize) -> PredictCall:
    """The call, its values still JSON; `rows_of` reads them with the model at hand."""
    is_long = len(body) > json_body.SLICE_BYTES
    try:
        request = _from_long(body, max_rows) if is_long else _bodies.decode(body)
    except json_body.DECODE_ERRORS as error:
        raise json_body.fault(error, body) from None
    columnar = len(memoryview(request.inputs)) > 0
    if columnar == (request.instances is not None):
        raise BadRequest("The body must have either 'instances' (rows) or 'inputs' (columns).")
    if request.instances is not None and not request.instances:
        raise BadRequest("'instances' is empty; it must have at least one.", param="instances")
    return PredictCall(request.instances, request.inputs if columnar else None)


def row_count(call: PredictCall) -> int:
    """About: of columns, all lists count."""
    return json_body.lists(call.inputs) if call.inputs is not None else len(call.instances or ())


def rows_of(call: PredictCall, d: ModelDescription) -> Rows:
    """The call's rows; `BadRequest` names the input and the row."""
    if call.inputs is not None:
        return from_rows(_columns(call.inputs, d), d)
    return from_rows(_instances(call.instances or [], d), d)


def _instances(instances: list[msgspec.Raw], d: ModelDescription) -> dict[str, list[Array]]:
    specs = {spec.name: spec for spec in d.inputs}
    check_count(len(instances), d)
    columns: dict[str, list[Array]] = {}
    breaks = json_body.Breaks()
    for index, instance in enumerate(instances):
        named = _named(instance, d, "instances")
        if index and named.keys() != columns.keys():
            raise BadRequest(
                f"instances[{index}] has the inputs {', '.join(named) or 'none'}, "
                f"instances[0] has {', '.join(columns)}; all instances must have the same inputs.",
                param="instances",
            )
        for name, raw in named.items():
            columns.setdefault(name, []).append(_value(raw, name, specs, d))
        breaks.take()
    return columns


def _columns(inputs: msgspec.Raw, d: ModelDescription) -> dict[str, list[Array]]:
    specs = {spec.name: spec for spec in d.inputs}
    columns: dict[str, list[Array]] = {}
    count = None
    breaks = json_body.Breaks()
    for name, raw in _named(inputs, d, "inputs").items():
        try:
            values = _rows(raw, d.scheduling.core.max_queue_rows)
        except json_body.DECODE_ERRORS as error:
            raise json_body.element(error, f"Input '{name}'", "value") from None
        if not values or len(values) != (count or len(values)):
            raise BadRequest(
                f"Input '{name}' has {len(values)} rows; "
                "all inputs must have the same number of rows, at least 1."
            )
        count = len(values)
        check_count(count, d)
        columns[name] = rows = []
        for value in values:
            rows.append(_value(value, name, specs, d))
            breaks.take()
    return columns


def _named(raw: msgspec.Raw, d: ModelDescription, param: str) -> dict[str, msgspec.Raw]:
    """Inputs by name; a bare value belongs to the one input the model needs."""
    if bytes(memoryview(raw)[:1]) == b"{":
        try:
            named = _objects.decode(raw)
        except json_body.DECODE_ERRORS as error:
            raise json_body.element(error, "The body", param) from None
        if named and named.keys() != {"b64"}:
            return named
    needed = [
        spec.name
        for spec in d.inputs
        if spec.name not in d.optional_inputs and spec.name != d.mask_input
    ]
    if len(needed) != 1:
        raise BadRequest(
            f"'{d.name}' needs the inputs {', '.join(needed)}; give {param} as objects by name.",
            param=param,
        )
    return {needed[0]: raw}


def _value(raw: msgspec.Raw, name: str, specs: dict[str, TensorSpec], d: ModelDescription) -> Array:
    if name not in specs:
        raise BadRequest(f"Unknown input '{name}'; '{d.name}' takes {', '.join(specs)}.")
    if json_body.is_long(raw):
        bound_of(d, numbers=True).check_numbers(json_body.elements(raw))
    return row_from_json(raw, name, specs[name].datatype, len(specs[name].shape) - 1)


def encode(call: PredictCall, rows_out: RowsOut, d: ModelDescription) -> Encoded:
    """Every row as nested lists of its own shape; a single output stands without its name."""
    _check_outputs(rows_out, d)
    columns = {
        spec.name: [_json(row, spec.datatype) for row in rows_out[spec.name][1]]
        for spec in d.outputs
    }
    single = len(columns) == 1
    body: dict[str, Any]
    if call.instances is None:
        body = {"outputs": next(iter(columns.values())) if single else columns}
    elif single:
        body = {"predictions": next(iter(columns.values()))}
    else:
        body = {"predictions": _by_row(columns)}
    return Encoded(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY))


def pieces(call: PredictCall, rows_out: RowsOut, d: ModelDescription) -> LargeAnswer:
    """As `encode`, of a large answer."""
    return LargeAnswer(_parts(call, rows_out, d))


def _parts(call: PredictCall, rows_out: RowsOut, d: ModelDescription) -> Parts:
    _check_outputs(rows_out, d)
    names = [spec.name for spec in d.outputs]
    columns = {
        spec.name: [partial(nested, row, spec.datatype, _text) for row in rows_out[spec.name][1]]
        for spec in d.outputs
    }
    if len(names) == 1:
        yield b'{"predictions":' if call.instances is not None else b'{"outputs":'
        yield from listed(row() for row in columns[names[0]])
    elif call.instances is not None:
        yield b'{"predictions":'
        yield from listed(
            _object(names, [row() for row in rows]) for rows in zip(*columns.values(), strict=True)
        )
    else:
        yield b'{"outputs":'
        yield from _object(names, [listed(row() for row in rows) for rows in columns.values()])
    yield b"}"


def _object(names: list[str], values: list[Parts]) -> Parts:
    before = b"{"
    for name, value in zip(names, values, strict=True):
        yield before + orjson.dumps(name) + b":"
        yield from value
        before = b","
    yield b"}"


def _check_outputs(rows_out: RowsOut, d: ModelDescription) -> None:
    missing = [spec.name for spec in d.outputs if spec.name not in rows_out]
    if missing:
        raise RowFailed(f"The model '{d.name}' returned no output '{missing[0]}'.")


def _by_row(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def _json(row: Array, datatype: str) -> Any:
    if datatype == "BYTES":
        return _texts(row.tolist())
    if row.ndim == 0:
        return row.item()
    return np.ascontiguousarray(row, dtype=np.float32 if datatype in HALVES else None)


def _texts(value: Any) -> Any:
    if not isinstance(value, bytes):
        return [_texts(item) for item in value]
    return _text(value)


def _text(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}
