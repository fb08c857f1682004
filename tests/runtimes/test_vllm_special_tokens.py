"""What a caller's text says never is a special token, and all else is read as it always was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from examples import make_llm
from runtimes.vllm.special_tokens import SpecialTokens, whole

NAMES = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
TEXTS = st.lists(
    st.sampled_from([*NAMES, "<", "|", "<|", "|>", "end", "system", ">", " ", "é", "日", "stone",
                     "\U0010fffc", "\U0010fffd"]),
    max_size=6,
).map("".join)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = make_llm.make(tmp_path_factory.mktemp("made") / "llm")
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def special(tokenizer: Tokenizer) -> SpecialTokens:
    return SpecialTokens(tokenizer)


def read(special: SpecialTokens, tokenizer: Tokenizer, prompt: str) -> list[int]:
    ids = special.ids(prompt, around=False)
    return list(tokenizer.encode(prompt).ids) if ids is None else ids


@given(first=TEXTS, second=TEXTS)
def test_texts_stay_text_and_the_templates_tokens_are_its_own(
    special: SpecialTokens, tokenizer: Tokenizer, first: str, second: str
) -> None:
    """Also where one text follows another with nothing between them."""
    prompt = "<|user|>" + special.broken(first) + special.broken(second) + "<|end|><|assistant|>"
    ids = read(special, tokenizer, prompt)
    names = [tokenizer.id_to_token(each) for each in ids]
    assert [name for name in names if name in NAMES] == ["<|user|>", "<|end|>", "<|assistant|>"]
    said = (first + second).replace("\U0010fffc", "").replace("\U0010fffd", "")
    assert tokenizer.decode(ids, skip_special_tokens=False) == (
        f"<|user|>{said}<|end|><|assistant|>"
    )


@given(st.text(alphabet=st.characters(exclude_characters="<\U0010fffc\U0010fffd")))
def test_a_text_without_names_is_left_to_the_tokeniser(special: SpecialTokens, text: str) -> None:
    assert special.broken(text) == text
    assert special.ids(f"<|user|>{text}<|end|>", around=True) is None


def test_names_by_thousands_take_a_text_no_more_time_than_one() -> None:
    """Each tried at each place, they would take minutes; here they are over at once."""
    names = [f"<unused{n}>" for n in range(2000)]
    made = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    made.add_special_tokens([*names, "<unused1>>"])
    special = SpecialTokens(made)
    assert special.broken("<" * 1_000_000 + " ") == "<" * 1_000_000 + " "
    for name in (*names, "<unused1>>"):
        assert special.broken(f"a{name}b") == f"a<\U0010fffd{name[1:]}b"
    assert special.ids("<unused1>>\U0010fffd<unused1999>", around=False) == [2001, 2000]


def test_everything_within_a_message_is_broken_and_can_be_made_whole(
    special: SpecialTokens,
) -> None:
    message = {"role": "tool", "content": ["<|end|>", {"<|end|>": ("a", 1, None)}], "n": 2}
    broken = special.broken(message)
    assert "<|end|>" not in str(broken)
    assert whole(broken) == {**message, "content": ["<|end|>", {"<|end|>": ["a", 1, None]}]}


def test_what_a_tokeniser_puts_around_texts_is_around_these_too(tokenizer: Tokenizer) -> None:
    from tokenizers.processors import TemplateProcessing

    framing = Tokenizer.from_str(tokenizer.to_str())
    framing.post_processor = TemplateProcessing(
        single="<|pad|> $A <|end|>", special_tokens=[("<|pad|>", 0), ("<|end|>", 1)]
    )
    special = SpecialTokens(framing)
    plain = special.ids(special.broken("<|end|>"), around=False)
    framed = special.ids(special.broken("<|end|>"), around=True)
    assert plain is not None
    assert framed == [0, *plain, 1]
    assert 1 not in plain


def test_tokens_added_behind_the_models_own_keep_their_numbers(tokenizer: Tokenizer) -> None:
    longer = Tokenizer.from_str(tokenizer.to_str())
    longer.add_tokens(["stonewheel"])
    longer.add_special_tokens(["<|call|>"])
    special = SpecialTokens(longer)
    ids = special.ids("<|call|>" + special.broken("<|call|>stonewheel"), around=False)
    assert ids is not None
    call, wheel = longer.token_to_id("<|call|>"), longer.token_to_id("stonewheel")
    assert (ids[0], ids[-1], ids.count(call)) == (call, wheel, 1)
