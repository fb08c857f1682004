"""Equal rows have equal keys however they were written; nothing else shares one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.reuse.row_keys import joint_key, row_keys
from deployments.gateway.rows.columns import RowColumn, Rows

OUTPUTS = ("pooled", "hidden")


def tokens(*rows: list[int], name: str = "ids", datatype: str = "INT64") -> RowColumn:
    dtype = {"INT64": np.int64, "INT32": np.int32}[datatype]
    arrays = [np.array(row, dtype=dtype) for row in rows]
    return RowColumn(datatype, arrays, [(len(row),) for row in rows])


def strings(*rows: list[bytes]) -> RowColumn:
    arrays = []
    for row in rows:
        array = np.empty(len(row), dtype=object)
        array[:] = row
        arrays.append(array)
    return RowColumn("BYTES", arrays, [(len(row),) for row in rows])


def request(outputs: tuple[str, ...] | None = None, **inputs: RowColumn) -> Rows:
    count = len(next(iter(inputs.values())).rows)
    return Rows(count, (1,) * count, inputs, outputs)


def keys(rows: Rows, version: str = "1") -> list[bytes]:
    return row_keys(rows, version, OUTPUTS)


def test_a_row_has_the_same_key_wherever_it_stands() -> None:
    alone = keys(request(ids=tokens([1, 2])))
    among = keys(request(ids=tokens([3], [1, 2])))
    assert alone == among[1:]
    assert among[0] != among[1]


def test_the_order_of_inputs_and_outputs_makes_no_difference() -> None:
    a, b = tokens([1]), tokens([2])
    one = request(("pooled", "hidden"), ids=a, types=b)
    other = request(("hidden", "pooled"), types=b, ids=a)
    assert keys(one) == keys(other)


def test_all_outputs_are_the_same_as_every_one_of_them() -> None:
    ids = tokens([1])
    assert keys(request(None, ids=ids)) == keys(request(OUTPUTS, ids=ids))
    assert keys(request(None, ids=ids)) != keys(request(("pooled",), ids=ids))


def test_a_view_and_a_copy_have_the_same_key() -> None:
    whole = np.arange(8)
    view = RowColumn("INT64", [whole[2:5]], [(3,)])
    assert keys(request(ids=view)) == keys(request(ids=tokens([2, 3, 4])))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (request(ids=tokens([1, 2])), request(ids=tokens([2, 1]))),
        (request(ids=tokens([1])), request(types=tokens([1]))),
        (request(ids=tokens([1])), request(ids=tokens([1], datatype="INT32"))),
        (request(ids=tokens([1, 0], datatype="INT32")), request(ids=tokens([1]))),
        (request(ids=tokens([1])), request(ids=tokens([1]), types=tokens([0]))),
        (request(a=tokens([1]), b=tokens([2])), request(a=tokens([2]), b=tokens([1]))),
        (request(text=strings([b"ab", b"c"])), request(text=strings([b"a", b"bc"]))),
        (request(text=strings([b"", b"a"])), request(text=strings([b"a", b""]))),
        (request(("pooled",), ids=tokens([1])), request(("hidden",), ids=tokens([1]))),
    ],
)
def test_different_rows_have_different_keys(one: Rows, other: Rows) -> None:
    assert keys(one) != keys(other)


def test_a_shape_is_part_of_the_key() -> None:
    flat = np.arange(6)
    one = RowColumn("INT64", [flat], [(2, 3)])
    other = RowColumn("INT64", [flat], [(3, 2)])
    assert keys(request(x=one)) != keys(request(x=other))


def test_versions_share_no_key() -> None:
    rows = request(ids=tokens([1]))
    assert keys(rows, "1") != keys(rows, "2")


@given(st.lists(st.lists(st.binary(max_size=3), max_size=3), min_size=2, max_size=8))
def test_keys_are_equal_exactly_where_strings_are(rows: list[list[bytes]]) -> None:
    found = keys(request(text=strings(*rows)))
    for i, one in enumerate(rows):
        for j, other in enumerate(rows):
            assert (found[i] == found[j]) == (one == other)


def test_a_joint_key_knows_its_rows_and_their_order() -> None:
    a, b = keys(request(ids=tokens([1], [2])))
    assert len({joint_key([a]), joint_key([b]), joint_key([a, b]), joint_key([b, a])}) == 4
    assert joint_key([a]) == a
