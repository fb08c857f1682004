"""An answer's text, token by token."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from runtimes.generation.texts import AnswerText


@pytest.fixture(scope="module")
def tokens() -> Tokenizer:
    """A token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def answer(tokens: Tokenizer, text: str, *stops: str, prompt: str = "", include: bool = False):
    ids = tokens.encode(prompt).ids
    made = AnswerText(tokens, ids, stops, include=include, skip_special=True)
    shown = []
    for token in tokens.encode(text).ids:
        shown.append(made.add(token))
        if made.stopped is not None:
            break
    return shown, made


def test_a_character_is_shown_when_it_is_whole(tokens):
    shown, _ = answer(tokens, "日x")
    assert shown == ["", "", "日", "x"]


def test_a_character_that_the_prompt_began_belongs_to_the_answer(tokens):
    ids = tokens.encode("the stone 日").ids
    made = AnswerText(tokens, ids[:-1], (), include=False, skip_special=True)
    assert made.add(ids[-1]) == "日"


@pytest.mark.parametrize(
    ("text", "stops", "shown", "stop"),
    [
        ("one stop here", ["stop"], "one ", "stop"),
        ("one sto", ["stop"], "one sto", None),
        ("ssstop", ["stop"], "ss", "stop"),
        ("abab!", ["abac", "b!"], "aba", "b!"),
        ("日本語", ["本"], "日", "本"),
        ("one two", ["one"], "", "one"),
    ],
)
def test_a_stop_ends_the_text_before_it(tokens, text, stops, shown, stop):
    parts, made = answer(tokens, text, *stops)
    assert "".join(parts) + made.rest() == shown
    assert made.stopped == stop


def test_nothing_is_held_back_that_no_stop_begins_with(tokens):
    shown, _ = answer(tokens, "no sun", "stop")
    assert shown == ["n", "o", " ", "", "su", "n"]


def test_a_stop_can_be_shown(tokens):
    parts, made = answer(tokens, "one stop here", "stop", include=True)
    assert "".join(parts) == "one stop"
    assert made.rest() == ""


def test_a_stop_before_the_fewest_tokens_is_text(tokens):
    made = AnswerText(tokens, [], ("a",), include=False, skip_special=True)
    token = tokens.encode("a").ids[0]
    assert made.add(token, may_stop=False) == "a"
    assert made.stopped is None
    assert made.add(token) == ""
    assert made.stopped == "a"
