"""An answer's text begins behind its prompt, in whatever part of a character the prompt ends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer

from examples import make_llm
from runtimes import catalog

MISSING = catalog.available("vllm", "generate")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = make_llm.make(tmp_path_factory.mktemp("made") / "llm")
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def answered(tokenizer: Tokenizer, prompt: list[int], output: list[int]) -> str:
    from vllm.sampling_params import SamplingParams

    from runtimes.vllm.text_layer import AnswerDetokenizer

    request = SimpleNamespace(
        request_id="r", sampling_params=SamplingParams(), prompt_token_ids=prompt
    )
    reader = AnswerDetokenizer(SimpleNamespace(_tokenizer=tokenizer), request)
    return "".join(reader.decode_next(each) for each in output)


@pytest.mark.parametrize("before", ["", "the stone "])
@pytest.mark.parametrize("missing", [1, 2])
def test_a_character_that_the_prompt_began_is_the_answers(
    tokenizer: Tokenizer, before: str, missing: int
) -> None:
    ids = tokenizer.encode(before + "日").ids
    assert answered(
        tokenizer, ids[:-missing], [*ids[-missing:], *tokenizer.encode(" mill").ids]
    ) == ("日 mill")


@pytest.mark.parametrize("prompt", ["the stone ", "", "日", "\N{REPLACEMENT CHARACTER}"])
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_what_follows_is_all_of_the_answer(tokenizer: Tokenizer, prompt: str, cut: int) -> None:
    ids = tokenizer.encode("a stone " + prompt).ids
    prompt_ids = ids[: len(ids) - cut]
    assert answered(tokenizer, prompt_ids, tokenizer.encode(" mill 本 é").ids) == " mill 本 é"
