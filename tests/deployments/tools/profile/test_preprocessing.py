"""Is a tokeniser's speed that of texts as long as was asked?"""

from __future__ import annotations

from random import Random

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from deployments.tools.profile.preprocessing import tokenising


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
