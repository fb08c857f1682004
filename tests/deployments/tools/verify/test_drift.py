"""Which tensor drifts first, whose error it is, and who stands beside it."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from deployments.tools.verify.layers import around, drifts, tensor_error
from runtimes.layers import Layer

ONES = np.ones(4, np.float32)


def layer(name: str, *inputs: str, value=ONES) -> Layer:
    return Layer(name, f"node_{name}", "Op", inputs, np.asarray(value, np.float32))


def chain(**errors: float) -> list[Layer]:
    """a → b → c → d, each off by its error."""
    before = {"a": (), "b": ("a",), "c": ("b",), "d": ("c",)}
    return [layer(n, *i, value=ONES * (1 + errors.get(n, 0))) for n, i in before.items()]


def test_equal_traces_do_not_drift():
    found = drifts(chain(), chain(), "fp32")
    assert (found.compared, found.first, found.origins) == (4, None, ())


def test_the_first_beyond_ten_roundings_is_named_and_only_its_origin_blamed():
    found = drifts(chain(), chain(a=0.001, b=0.5, c=0.5, d=0.6), "bf16")
    assert found.allowed == pytest.approx(10 / 256)
    assert found.first is not None
    assert (found.first.name, found.first.node) == ("b", "node_b")
    assert [drift.name for drift in found.origins] == ["b"]
    assert set(around(found.origins[0], chain(), 1)) == {"node_a", "node_b", "node_c"}
    assert len(around(found.origins[0], chain(), 2)) == 4


def test_error_that_came_in_is_not_an_operation_s_own_even_past_what_is_not_compared():
    unlike = [layer("a"), layer("x", "a"), layer("b", "x", value=ONES * 1.5), layer("y", "b")]
    later = [*unlike, layer("c", "y", value=ONES * 1.5)]
    reference = [layer("a"), layer("b"), layer("c")]
    found = drifts(reference, later, "int8")
    assert found.compared == 3
    assert [drift.name for drift in found.origins] == ["b"]


def test_the_worst_origin_comes_first():
    reference = [layer("a"), layer("b"), layer("c")]
    candidate = [layer("a", value=ONES * 1.2), layer("b", value=ONES * 3), layer("c")]
    found = drifts(reference, candidate, "int8")
    assert [drift.name for drift in found.origins] == ["b", "a"]
    assert found.first is not None
    assert found.first.name == "a"


def test_overflow_is_the_worst_of_all_and_blamed_where_it_arose():
    reference = [layer("a"), layer("b", "a", value=ONES * 1e5), layer("c", "b")]
    candidate = [layer("a"), layer("b", "a", value=ONES * inf), layer("c", "b", value=ONES * inf)]
    found = drifts(reference, candidate, "fp16")
    (origin,) = found.origins
    assert (origin.name, origin.error, origin.largest) == ("b", inf, 1e5)


def test_tensors_of_another_shape_are_not_compared():
    assert drifts([layer("a", value=[1, 2])], [layer("a")], "fp32").compared == 0


def test_an_error_is_relative_to_the_whole_tensor():
    assert tensor_error(np.array([3.0, 4.0]), np.array([3.0, 4.5])) == pytest.approx(0.1)
    assert tensor_error(np.zeros(2), np.zeros(2)) == 0
    assert tensor_error(np.zeros(2), np.ones(2)) == inf
    assert tensor_error(np.array([inf]), np.array([inf])) == 0
