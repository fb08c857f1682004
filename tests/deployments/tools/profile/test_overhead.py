"""Is what a request costs beside the device counted: its memory, its tokenising?"""

from __future__ import annotations

import sys
from random import Random

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from deployments.tools.profile import overhead
from deployments.tools.profile.overhead import measured, tokenising

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
    monkeypatch.setattr(overhead, "_SELF", tmp_path / "gone")
    assert measured(lambda: None, lambda: None, 4) is None


def words() -> bytes:
    """A word is a token."""
    made = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made.to_str().encode()


def test_a_row_takes_as_much_longer_as_it_has_more_tokens() -> None:
    found = tokenising(words(), 512, [102], 0.02, Random(0))
    assert found is not None
    assert found.texts >= 32
    assert found.row_s / found.token_s == pytest.approx(100)  # 102 with what BERT's adds
    assert found.rows_per_s == pytest.approx(1 / found.row_s)


def test_a_model_without_texts_has_none() -> None:
    assert tokenising(b"", 512, [10], 1.0, Random(0)) is None
