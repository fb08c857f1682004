"""Arrow streams: what pyarrow writes is read, what we write it reads, hostile ones are refused."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import arrow_answer
from deployments.gateway.http.protocols.arrow_answer import column_of, write
from deployments.gateway.http.protocols.arrow_messages import Column
from deployments.gateway.http.protocols.arrow_stream import read
from deployments.gateway.http.protocols.tensors import RowTensor
from runtimes.types import DTYPES

NUMBERS = sorted(DTYPES.keys() - {"BYTES"})
RNG = np.random.default_rng(5)


def array(datatype: str, *shape: int) -> np.ndarray[Any, Any]:
    size = int(np.prod(shape))
    if datatype == "BYTES":
        found = np.empty(size, object)
        found[:] = [bytes(range(at % 5)) for at in range(size)]
        return found.reshape(shape)
    return RNG.integers(0, 2 if datatype == "BOOL" else 100, shape).astype(DTYPES[datatype])


def tensor(name: str, datatype: str, *shapes: tuple[int, ...]) -> RowTensor:
    return RowTensor(name, datatype, [array(datatype, *shape) for shape in shapes], ())


def stream(*columns: tuple[RowTensor, bool], **metadata: str) -> bytes:
    tensors = [each for each, _ in columns]
    types = [column_of(each, ragged=ragged) for each, ragged in columns]
    written = write(tensors, types, metadata, 64)
    body = b"".join(written.parts)
    assert len(body) == written.size
    return body


def same(found: Sequence[Any], rows: Sequence[Any]) -> None:
    assert len(found) == len(rows)
    for one, other in zip(found, rows, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize("datatype", DTYPES)
@pytest.mark.parametrize(
    ("shapes", "ragged"),
    [
        ([()] * 9, False), ([(3,)] * 4, False), ([(2, 3)] * 3, False),
        ([(3,), (1,), (4,)], True), ([(3, 2), (0, 2), (1, 2)], True), ([(0,)], True),
    ],
)  # fmt: skip
def test_rows_come_back_as_they_were(datatype: str, shapes: Any, ragged: bool) -> None:
    given_rows = tensor("y", datatype, *shapes)
    found = read(stream((given_rows, ragged), id="7"))
    assert (found.rows, found.metadata) == (len(shapes), {"id": "7"})
    assert [(c.name, c.datatype) for c in found.columns] == [("y", datatype)]
    same(found.split("y"), given_rows.rows)


def mixed() -> bytes:
    return stream(
        (tensor("ids", "INT64", (3,), (1,), (2,)), True),
        (tensor("wide", "FP32", (2, 2), (2, 2), (2, 2)), False),
        (tensor("flag", "BOOL", (), (), ()), False),
        (tensor("text", "BYTES", (1,), (4,), (0,)), True),
        id="1", outputs='["y"]',
    )  # fmt: skip


def test_numbers_are_views_of_the_body_and_read_only() -> None:
    body = mixed()
    rows = read(body).split("ids")
    assert all(np.shares_memory(row, np.frombuffer(body, np.uint8)) for row in rows)
    assert not rows[0].flags.writeable


def test_numbers_of_an_answer_are_views_of_their_rows() -> None:
    grid = RNG.standard_normal((4, 50_000), np.float32)
    answered = RowTensor("y", "FP32", list(grid), (50_000,))
    parts = list(write([answered], [column_of(answered, ragged=False)], {}, 65_536).parts)
    views = [part for part in parts if isinstance(part, memoryview)]
    assert sum(map(len, views)) == grid.nbytes
    assert all(np.shares_memory(np.frombuffer(view, np.uint8), grid) for view in views)
    assert max(map(len, views)) == 65_536


def test_rows_that_differ_in_a_second_axis_have_no_arrow_form() -> None:
    with pytest.raises(BadRequest, match="ask for JSON"):
        column_of(tensor("y", "FP32", (2, 3), (2, 4)), ragged=True)
    with pytest.raises(BadRequest, match="ask for JSON"):
        column_of(tensor("y", "FP32", (2,), (3,)), ragged=False)


# ---- what must be refused ---------------------------------------------------------------------


def all_of(body: bytes) -> None:
    """Everything that a request makes of a stream; BadRequest alone may be raised."""
    try:
        found = read(body)
        for column in found.columns:
            rows = found.split(column.name)
            assert len(rows) == found.rows
            assert sum(row.nbytes for row in rows if column.datatype != "BYTES") <= 8 * len(body)
    except BadRequest:
        pass


@pytest.mark.parametrize("length", range(0, 1500, 7))
def test_a_stream_that_is_cut_off_is_refused_or_ends_between_messages(length: int) -> None:
    all_of(mixed()[:length])


def test_bytes_of_another_kind_are_refused() -> None:
    for body, why in [
        (b"", "does not begin with a schema"),
        (b"ARROW1\0\0" + mixed(), "a file, or the format before 0.15"),
        (b'{"inputs": []}', "a message begins with other bytes"),
        (mixed() + b"more", "4 bytes follow its end"),
        (mixed()[:-4], "ends within a message"),
        (struct.pack("<II", 0xFFFFFFFF, 1 << 30), "of at most 262144"),
        (struct.pack("<IIi", 0xFFFFFFFF, 4, -1), "cannot be read"),
    ]:
        with pytest.raises(BadRequest, match=why):
            read(body)


def mutated(body: bytes, rng: random.Random) -> bytes:
    data = bytearray(body)
    for _ in range(rng.choice((1, 1, 2, 3, 9))):
        at, how = rng.randrange(len(data)), rng.random()
        if how < 0.4:
            data[at] = rng.choice((0, 1, 2, 127, 128, 255, rng.randrange(256)))
        elif how < 0.7:
            value = rng.choice((0, 1, -1, 7, 2**31 - 1, -(2**31), 2**24, rng.randrange(2000)))
            data[at : at + 4] = struct.pack("<i", value)
        elif how < 0.85:
            value = rng.choice((0, -1, 2**63 - 1, -(2**63), 2**40, rng.randrange(2000)))
            data[at : at + 8] = struct.pack("<q", value)
        elif how < 0.95:
            del data[at : at + rng.randrange(1, 12)]
        else:
            data[at:at] = rng.randbytes(rng.randrange(1, 12))
    return bytes(data)


@pytest.mark.parametrize("seed", range(8))
def test_changed_streams_never_fail_otherwise(seed: int) -> None:
    rng, body = random.Random(seed), mixed()
    for _ in range(400):
        all_of(mutated(body, rng))


@given(st.binary(max_size=400), st.integers(0, 60))
@settings(max_examples=300, deadline=None)
def test_random_bytes_never_fail_otherwise(data: bytes, begins: int) -> None:
    all_of(data)
    all_of(mixed()[: 8 * begins] + data)
    all_of(struct.pack("<II", 0xFFFFFFFF, len(data)) + data)


def with_ints(body: bytes, was: Sequence[int], now: Sequence[int], code: str = "i") -> bytes:
    old = struct.pack(f"<{len(was)}{code}", *was)
    assert body.count(old) == 1
    return body.replace(old, struct.pack(f"<{len(now)}{code}", *now))


IDS = (0, 3, 4, 6)  # offsets of `mixed`'s lists


@pytest.mark.parametrize(
    "offsets",
    [(0, 3, 2, 6), (-1, 3, 4, 6), (0, 3, 4, 7), (0, 3, 4, 2**31 - 1), (-(2**31), 0, 0, 6)],
)
def test_offsets_that_lead_elsewhere_are_refused(offsets: tuple[int, ...]) -> None:
    with pytest.raises(BadRequest, match=r"do not rise|end behind their values"):
        read(with_ints(mixed(), IDS, offsets))


def test_offsets_may_begin_later_and_lists_may_be_empty() -> None:
    found = read(with_ints(mixed(), IDS, (1, 1, 4, 6))).split("ids")
    assert [len(row) for row in found] == [0, 3, 2]


@pytest.mark.parametrize(
    ("place", "why"),
    [((-8, 16), "lies outside"), ((0, 2**62), "lies outside"), ((0, 8), "has 8 bytes, of 16")],
)
def test_buffers_that_lie_elsewhere_are_refused(place: tuple[int, int], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        read(with_ints(mixed(), (0, 0, 0, 16), (0, 0, *place), "q"))


def test_buffers_that_share_bytes_are_refused() -> None:
    """A body could stand for sixty times as much."""
    columns = [tensor(f"x{at}", "INT64", (), ()) for at in range(4)]
    body = stream(*[(each, False) for each in columns])
    places = [number for at in range(4) for number in (16 * at, 0, 16 * at, 16)]
    all_at_once = [number for _ in range(4) for number in (0, 0, 0, 16)]
    whole = with_ints(body, places, all_at_once, "q")
    end = len(whole) - 8
    shorter = with_ints(whole[: end - 48] + whole[end:], (64,), (16,), "q")
    with pytest.raises(BadRequest, match="has 16 bytes, of 16"):
        read(shorter)


def test_nulls_are_refused() -> None:
    with pytest.raises(BadRequest, match="Field 'flag' has nulls"):
        read(with_ints(mixed(), (12, 0, 3, 0, 3, 0), (12, 0, 3, 1, 3, 0), "q"))


@pytest.mark.parametrize(("was", "now"), [(7, 2**31 - 1), (7, 0), (7, -7), (5, 2**30)])
def test_fixed_sizes_that_no_array_has_are_refused(was: int, now: int) -> None:
    """With lists of none of them, nothing else would tell."""
    body = stream((tensor("y", "INT8", (0, 7, 5)), True))
    assert read(body).split("y")[0].shape == (0, 7, 5)
    size = len(arrow_answer._schema_message((Column("y", "INT8", 4, (7, 5)),), ()))
    with pytest.raises(BadRequest, match="entries in all"):
        read(with_ints(body[:size], (was,), (now,)) + body[size:])


def test_too_many_batches_and_fields_are_refused() -> None:
    one = tensor("y", "INT8", ())
    body = stream((one, False))
    schema = len(arrow_answer._schema_message((column_of(one, ragged=False),), ()))
    batch = body[schema:-8]
    assert read(body[:schema] + batch * 2048).rows == 2048
    with pytest.raises(BadRequest, match="more record batches"):
        read(body[:schema] + batch * 2049)
    many = [(tensor(f"y{at}", "INT8", ()), False) for at in range(65)]
    assert len(read(stream(*many[:64])).columns) == 64
    with pytest.raises(BadRequest, match="lists 65"):
        read(stream(*many))
    with pytest.raises(BadRequest, match="names must be unique"):
        read(stream((one, False), (one, False)))


# ---- with the library that people have ----------------------------------------------------------


@pytest.fixture(scope="module")
def pa() -> Any:
    return pytest.importorskip("pyarrow")


def written(pa: Any, table: Any, **more: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, **more) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue()


_NAMES = {"BOOL": "bool_", "FP16": "float16", "FP32": "float32", "FP64": "float64"}
TYPES = _NAMES | {name: name.lower() for name in NUMBERS if "INT" in name}
LISTS: list[list[list[int]]] = [[[1, 0, 1], [0], [1, 1]], [[], [0, 1], []]]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("datatype", TYPES)
def test_what_pyarrow_writes_is_read(pa: Any, datatype: str, large: bool) -> None:
    of, lists = getattr(pa, TYPES[datatype])(), pa.large_list if large else pa.list_
    rows = [row for batch in LISTS for row in batch]
    values = [[float(v) if datatype == "FP16" else v for v in row] for row in rows]
    as_type = [np.array(row, DTYPES[datatype]) for row in values]
    table = pa.table({
        "ragged": pa.array(as_type, lists(of)),
        "fixed": pa.array([np.array([1, 0], DTYPES[datatype])] * 6, pa.list_(of, 2)),
        "plain": pa.array(np.array([0, 1] * 3, DTYPES[datatype]), of),
    })  # fmt: skip
    found = read(written(pa, table))
    assert [c.datatype for c in found.columns] == [datatype] * 3
    same(found.split("ragged"), as_type)
    same(found.split("fixed"), [np.array([1, 0], DTYPES[datatype])] * 6)
    same(found.split("plain"), [np.array(value, DTYPES[datatype]) for value in [0, 1] * 3])


@pytest.mark.parametrize("kind", ["utf8", "large_utf8", "binary", "large_binary"])
def test_texts_of_pyarrow_are_bytes(pa: Any, kind: str) -> None:
    of = getattr(pa, kind)()
    texts = [b"a", b"", "ä".encode(), b"more"]
    sent = texts if "binary" in kind else [text.decode() for text in texts]
    lists = pa.array([[each] * 2 for each in sent], pa.list_(of))
    table = pa.table({"t": pa.array(sent, of), "l": lists})
    found = read(written(pa, table))
    assert [row.item() for row in found.split("t")] == texts
    assert [row.tolist() for row in found.split("l")] == [[t] * 2 for t in texts]


def test_slices_of_a_larger_table_are_read(pa: Any) -> None:
    table = pa.table({"x": pa.array([[at] * at for at in range(20)], pa.list_(pa.int32()))})
    found = read(written(pa, table.slice(5, 7)))
    assert [row.tolist() for row in found.split("x")] == [[at] * at for at in range(5, 12)]


@pytest.mark.parametrize("datatype", DTYPES)
def test_what_is_written_pyarrow_reads(pa: Any, datatype: str) -> None:
    ragged = tensor("ragged", datatype, (3, 2), (0, 2), (1, 2))
    dense = tensor("dense", datatype, (2, 2), (2, 2), (2, 2))
    plain = tensor("plain", datatype, (), (), ())
    body = stream((ragged, True), (dense, False), (plain, False), model_name="m")
    table = pa.ipc.open_stream(body).read_all()
    table.validate(full=True)
    assert table.schema.metadata == {b"model_name": b"m"}

    def numbers(rows: Sequence[Any]) -> list[Any]:
        as_kept = [row.view(np.uint16) if datatype == "BF16" else row for row in rows]
        return [row.tolist() for row in as_kept]

    assert table["ragged"].to_pylist() == numbers(ragged.rows)
    assert table["dense"].to_pylist() == numbers(dense.rows)
    assert table["plain"].to_pylist() == numbers(plain.rows)
    said = table.schema.field("plain").metadata
    assert said == ({b"datatype": b"BF16"} if datatype == "BF16" else None) or said == {}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda pa: pa.table({"x": pa.array([1, None])}), "has nulls"),
        (lambda pa: pa.table({"x": pa.array([[1], None])}), "has nulls"),
        (lambda pa: pa.table({"x": pa.array([[1, None]])}), "has nulls"),
        (lambda pa: pa.table({"x": pa.array(["a"]).dictionary_encode()}), "dictionary-encoded"),
        (lambda pa: pa.table({"x": pa.array([[[1]]])}), "type that is not supported"),
        (lambda pa: pa.table({"x": pa.array([{"a": 1}])}), "type that is not supported"),
        (lambda pa: pa.table({"x": pa.array([1], pa.timestamp("s"))}), "type that is not"),
        (lambda pa: pa.table({"x": pa.array(["a"], pa.string_view())}), "type that is not"),
        (lambda pa: pa.table({"x": pa.nulls(2)}), "type that is not supported"),
        (lambda pa: pa.table({"x": pa.array([[[1]]], pa.list_(pa.list_(pa.int8()), 1))}),
         "type that is not supported"),
    ],
)  # fmt: skip
def test_what_rows_cannot_be_made_of_is_refused(pa: Any, make: Any, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        read(written(pa, make(pa)))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_streams_are_refused(pa: Any, codec: str) -> None:
    table = pa.table({"x": pa.array(np.zeros(5000, np.int64))})
    body = written(pa, table, options=pa.ipc.IpcWriteOptions(compression=codec))
    with pytest.raises(BadRequest, match="send it uncompressed"):
        read(body)


def test_files_of_pyarrow_are_refused(pa: Any) -> None:
    sink = io.BytesIO()
    table = pa.table({"x": pa.array([1])})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(BadRequest, match="a file"):
        read(sink.getvalue())


@pytest.mark.parametrize("seed", range(4))
def test_changed_streams_of_pyarrow_never_fail_otherwise(pa: Any, seed: int) -> None:
    table = pa.table({
        "a": pa.array([[1, 2, 3], [4], [5, 6]], pa.large_list(pa.int64())),
        "b": pa.array(["x", "yy", "zzz"], pa.large_utf8()),
        "c": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2)),
    })  # fmt: skip
    rng, body = random.Random(seed), written(pa, table)
    for _ in range(300):
        all_of(mutated(body, rng))
