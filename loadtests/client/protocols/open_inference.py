"""Open Inference Protocol: rows of token ids, or texts, to `/v2/models/M/infer`, in JSON or binary.

What the model takes is read from its metadata: texts where its first input is BYTES, else ids, with
a mask and types where it has such inputs. Rows of one request are padded to its longest. Each
request differs from every other in two ids, so that nothing that keeps or shares answers shortens
the work; the rest of a body is rendered once a length.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.client.protocols.types import Endpoint, Heads, WireError
from loadtests.traffic.plan import Planned
from loadtests.traffic.texts import Texts
from loadtests.traffic.workload import HEADER_LENGTH, token_ids

_FORMATS = {"INT64": "q", "INT32": "i"}
_FIVE_DIGITS = (10_000, 29_999)  # so that the two that vary are found in no other place's digits


@dataclass(frozen=True, slots=True)
class Inputs:
    """`first`: what rows go into. `masks`: inputs of ones where there is a token; `zeros`: others
    that ids have."""

    first: str
    datatype: str = "INT64"
    masks: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()

    @classmethod
    def of(cls, metadata: Any) -> Inputs:
        """Raises WireError."""
        try:
            found = [(each["name"], each["datatype"]) for each in metadata["inputs"]]
        except (TypeError, KeyError):
            raise WireError("the model's metadata lists no inputs") from None
        masks = tuple(name for name, _ in found if "mask" in name)
        rows = [each for each in found if each[0] not in masks and "type" not in each[0]]
        if not rows or rows[0][1] not in (*_FORMATS, "BYTES"):
            said = ", ".join(f"{name} {datatype}" for name, datatype in found) or "nothing"
            raise WireError(f"the model takes {said}; only ids and texts can be sent")
        zeros = tuple(name for name, _ in found if "type" in name)
        return cls(rows[0][0], rows[0][1], masks, zeros)


class OpenInference:
    """JSON; see `Wire`."""

    binary = False

    def __init__(self, place: Endpoint) -> None:
        self.place = place
        self._heads = Heads(place, f"/v2/models/{place.model}/infer")
        self._inputs = Inputs("ids")
        self.reseed("")

    def prepare(self) -> None:
        metadata = self.place.metadata()
        try:
            self._inputs = Inputs.of(metadata)
        except WireError as error:
            raise WireError(f"{self.place.url}: model {self.place.model}: {error}") from None

    def reseed(self, seed: str) -> None:
        self._rng = random.Random(f"{seed} ids")
        self._texts = Texts(seed)
        self._bodies: dict[int, _Body] = {}

    def request(self, planned: Planned) -> bytes:
        lengths = planned.lengths
        if len(lengths) > 1 or self._inputs.datatype == "BYTES" or lengths[0] < 4:
            body = self._render(self._rows(lengths), lengths)
            return self._sent(planned, body.whole, body.header_bytes)
        body = self._bodies.get(lengths[0]) or self._keep(lengths[0])
        pair = self._rng.randrange(1000, 29999), self._rng.randrange(1000, 29999)
        return self._sent(planned, body.with_ids(*pair), body.header_bytes)

    def listener(self, planned: Planned) -> None:
        return None

    def _sent(self, planned: Planned, body: bytes, header_bytes: int) -> bytes:
        return self._heads.request(planned, body)

    def _rows(self, lengths: Sequence[int]) -> list[Any]:
        if self._inputs.datatype == "BYTES":
            return [self._texts.of(length) for length in lengths]
        longest = max(lengths)
        return [[*token_ids(n, self._rng), *[0] * (longest - n)] for n in lengths]

    def _keep(self, length: int) -> _Body:
        ids = token_ids(length, self._rng, *_FIVE_DIGITS)
        self._bodies[length] = body = self._render([ids], (length,))
        return body

    def _render(self, rows: list[Any], lengths: Sequence[int]) -> _Body:
        tensors = [self._tensor(name, data) for name, data in self._columns(rows, lengths)]
        body = json.dumps({"inputs": tensors, **self.place.extra}, separators=(",", ":")).encode()
        ids = rows[0][1:3] if isinstance(rows[0], list) else []
        return _Body(*_parted(body, ",".join(map(str, ids)).encode()), b"%d,%d")

    def _columns(self, rows: list[Any], lengths: Sequence[int]) -> list[tuple[str, list[Any]]]:
        inputs, longest = self._inputs, max(lengths)
        masks = [[1] * n + [0] * (longest - n) for n in lengths]
        zeros = [[0] * longest for _ in lengths]
        found = [(inputs.first, rows)]
        if inputs.datatype != "BYTES":
            found += [(name, masks) for name in inputs.masks]
            found += [(name, zeros) for name in inputs.zeros]
        return found

    def _tensor(self, name: str, rows: list[Any]) -> dict[str, Any]:
        texts = isinstance(rows[0], str)
        shape = [len(rows)] if texts else [len(rows), len(rows[0])]
        flat = rows if texts else [each for row in rows for each in row]
        return {"name": name, "shape": shape, "datatype": self._inputs.datatype, "data": flat}


@dataclass(frozen=True, slots=True)
class _Body:
    """Before and after the two ids that vary; `ids`: how they are written."""

    before: bytes
    ids: bytes
    after: bytes
    form: bytes | str
    header_bytes: int = 0

    @property
    def whole(self) -> bytes:
        return self.before + self.ids + self.after

    def with_ids(self, first: int, second: int) -> bytes:
        form = self.form
        if isinstance(form, str):
            return self.before + struct.pack(form, first, second) + self.after
        return self.before + form % (first, second) + self.after


def _parted(body: bytes, ids: bytes) -> tuple[bytes, bytes, bytes]:
    before, found, after = body.partition(ids) if ids else (body, b"", b"")
    return before, found, after


class OpenInferenceBinary(OpenInference):
    """Tensors as raw bytes after a JSON header, answers asked for likewise; see `Wire`."""

    binary = True

    def _render(self, rows: list[Any], lengths: Sequence[int]) -> _Body:
        columns = self._columns(rows, lengths)
        datas = [self._bytes_of(data) for _, data in columns]
        tensors = []
        for (name, data), raw in zip(columns, datas, strict=True):
            tensor = self._tensor(name, data)
            del tensor["data"]
            tensors.append(tensor | {"parameters": {"binary_data_size": len(raw)}})
        header = {"inputs": tensors, "parameters": {"binary_data_output": True}}
        head = json.dumps(header | dict(self.place.extra), separators=(",", ":")).encode()
        raw = b"".join(datas)
        if self._inputs.datatype == "BYTES":
            return _Body(head + raw, b"", b"", "", len(head))
        size = struct.calcsize(self._form(2)) // 2  # bytes an id; the second and third one vary
        cut = [raw[:size], raw[size : 3 * size], raw[3 * size :]]
        return _Body(head + cut[0], cut[1], cut[2], self._form(2), len(head))

    def _bytes_of(self, rows: list[Any]) -> bytes:
        if isinstance(rows[0], str):
            texts = [text.encode() for text in rows]
            return b"".join(struct.pack("<I", len(text)) + text for text in texts)
        flat = [each for row in rows for each in row]
        return struct.pack(self._form(len(flat)), *flat)

    def _form(self, count: int) -> str:
        return f"<{count}{_FORMATS[self._inputs.datatype]}"

    def _sent(self, planned: Planned, body: bytes, header_bytes: int) -> bytes:
        more = b"%s: %d\r\n" % (HEADER_LENGTH.encode(), header_bytes)
        return self._heads.request(planned, body, more)
