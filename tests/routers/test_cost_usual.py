"""The typical batch of a bucket: assumed at first, then what it has been."""

import pytest

from routers.cost.model import TypicalBatches


@pytest.mark.parametrize(("edge", "rows"), [(16, 16), (512, 8), (8192, 1), (100_000, 1), (0, 16)])
def test_half_of_what_fits_is_assumed(edge, rows):
    typical = TypicalBatches(max_size=32, max_tokens=8192).of(edge)
    assert (typical.rows, typical.width) == (rows, edge)


def test_batches_of_a_bucket_are_averaged_and_no_other_is_touched():
    batches = TypicalBatches(32, 8192)
    for _ in range(100):
        batches.observe(64, 2, 40)
        batches.observe(64, 6, 60)
    typical = batches.of(64)
    assert typical.rows == pytest.approx(4, abs=0.3)
    assert typical.width == pytest.approx(50, abs=2)
    assert batches.of(128).rows == 16
