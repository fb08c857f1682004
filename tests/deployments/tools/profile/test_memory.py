"""Is a request's memory its own peak, and a row's what each further one adds?"""

from __future__ import annotations

import sys

import numpy as np
import pytest

from deployments.tools.profile import memory
from deployments.tools.profile.memory import measured

MIB = 1 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process its peak")


def touching(mib: int):
    return lambda: np.ones(mib * MIB, np.uint8).sum()


@linux
def test_peaks_are_those_of_the_runs() -> None:
    found = measured(touching(64), touching(64 + 7 * 16), 8)
    if found is None:
        pytest.skip("the peak cannot be reset here")
    assert found.loaded > 10 * MIB
    assert found.request == pytest.approx(64 * MIB, rel=0.1)
    assert found.row == pytest.approx(16 * MIB, rel=0.1)


@linux
def test_one_row_has_no_further_ones() -> None:
    found = measured(touching(1), lambda: pytest.fail("there is no larger batch"), 1)
    assert found is None or (found.row, found.rows) == (0.0, 1)


def test_a_system_that_does_not_tell_is_no_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setattr(memory, "_SELF", tmp_path / "gone")
    assert measured(lambda: None, lambda: None, 4) is None
