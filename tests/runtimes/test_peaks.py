"""Are the peaks plausible: a product and a copy, as fast as the hardware has them?"""

from __future__ import annotations

import pytest

from runtimes import peaks


def test_a_copy_moves_gigabytes() -> None:
    assert 5e8 < peaks.copied_bytes(1, 0.01) < 1e13


def test_a_product_in_numpy_computes_gigaflops() -> None:
    found = peaks.flops("onnxruntime", "fp32", 1, 0.01)
    assert found is not None
    assert 1e9 < found < 1e14


@pytest.mark.parametrize(("runtime", "precision"), [("onnxruntime", "bf16"), ("torch", "int8")])
def test_what_cannot_be_measured_is_unknown(runtime: str, precision: str) -> None:
    assert peaks.flops(runtime, precision, 1, 0.01) is None


def test_a_product_in_openvino_computes_gigaflops() -> None:
    pytest.importorskip("openvino")
    found = peaks.flops("openvino", "fp32", 1, 0.01)
    assert found is not None
    assert 1e9 < found < 1e14
