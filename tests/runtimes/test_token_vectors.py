"""A vector for each token, and scores by them, against transformers' own module and plain torch."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from runtimes import catalog
from runtimes.catalog import create
from runtimes.errors import BadRows, LoadError
from runtimes.folder import pooling_of
from runtimes.types import Batch, Ragged, Runtime, RuntimeSettings
from tests.runtimes.test_families import SIZES, WORST

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("river", "wheel", "water", "turns", "the", "stone", "mill", "a", "flow", "head", "race")
WIDTH, FILL, FILLED = 24, 4, 16
DOCUMENTS = ([2, 6, 9, 11, 8, 3], [2, 6, 40, 41, 9, 42, 7, 43, 44, 45, 46, 3], [2, 6, 10, 3])


def tokenizer(path: Path, *markers: str) -> Tokenizer:
    """Writes one of a few words, `SPECIAL` first and punctuation last, as BERT's."""
    words = [*SPECIAL, *markers, *WORDS, *string.punctuation]
    made = Tokenizer(WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    around = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=around
    )
    made.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    made.add_tokens([AddedToken(word, normalized=True) for word in markers])
    path.mkdir(parents=True, exist_ok=True)
    made.save(str(path / "tokenizer.json"))
    said = {name: f"[{name.split('_')[0].upper()}]" for name in ("mask_token", "pad_token")}
    said |= {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **said}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return made


def network(path: Path, family: str = "bert") -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SIZES)
    made = transformers.AutoModel.from_config(config).eval()
    made.save_pretrained(path)
    return made


def written(place: Path, **config: Any) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(config))


def dense(place: Path, residual: bool = False, **more: Any) -> None:
    function = "torch.nn.modules.linear.Identity"
    sizes = {"in_features": 64, "out_features": WIDTH, "bias": False}
    written(place, **sizes, activation_function=function, use_residual=residual, **more)
    torch.manual_seed(1)
    weights = {"linear.weight": torch.randn(WIDTH, 64) / 8}
    if residual:
        weights["residual.weight"] = torch.randn(WIDTH, 64) / 8
    save_file(weights, place / "model.safetensors")


def colbert(path: Path, *, attend: bool = False, residual: bool = False, **said: Any) -> Any:
    """A folder of sentence-transformers' MultiVectorEncoder; transformers' module."""
    tokenizer(path, "[Q] ", "[D] ")
    made = network(path)
    kinds = [("", "base.modules.transformer.Transformer"), ("1_Dense", "base.modules.dense.Dense")]
    kinds += [("2_MultiVectorMask", "multi_vector_encoder.modules.MultiVectorMask")]
    kinds += [("3_Normalize", "base.modules.normalize.Normalize")]
    listing = [
        {"idx": at, "name": str(at), "path": place, "type": f"sentence_transformers.{kind}"}
        for at, (place, kind) in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(listing))
    dense(path / "1_Dense", residual, module_input_name="token_embeddings")
    words = {"skiplist_words": list(string.punctuation), "skiplist_tasks": ["document"]}
    written(path / "2_MultiVectorMask", **words)
    written(path / "3_Normalize", module_input_name="token_embeddings")
    expansion = {"strategy": "fixed", "attend": attend, "length": FILLED, "token": None}
    lengths = {"document_length": 40, "query_expansion": expansion}
    (path / "sentence_bert_config.json").write_text(json.dumps(lengths))
    prompts = {"query": "[Q] ", "document": "[D] "}
    choices = {"model_type": "MultiVectorEncoder", "prompts": prompts, **said}
    (path / "config_sentence_transformers.json").write_text(json.dumps(choices))
    return made


def pylate(path: Path, **said: Any) -> Any:
    tokenizer(path, "[Q] ", "[D] ")
    made = network(path)
    kinds = (
        ("", "sentence_transformers.models.Transformer"),
        ("1_Dense", "pylate.models.Dense.Dense"),
    )
    listing = [
        {"idx": at, "name": str(at), "path": place, "type": kind}
        for at, (place, kind) in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(listing))
    dense(path / "1_Dense")
    choices = {
        **{"model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] "},
        **{"query_length": FILLED, "document_length": 40, "do_query_expansion": True},
        **{"attend_to_expansion_tokens": False, "prompts": {}, **said},
    }
    (path / "config_sentence_transformers.json").write_text(json.dumps(choices))
    return made


def stanford(path: Path) -> Any:
    tokenizer(path, "[unused0]", "[unused1]")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model("bert", **SIZES, architectures=["HF_ColBERT"])
    made = transformers.AutoModel.from_config(config).eval()
    weights = {f"bert.{name}": value for name, value in made.state_dict().items()}
    weights["linear.weight"] = torch.randn(WIDTH, 64) / 8
    path.mkdir(parents=True, exist_ok=True)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(
        json.dumps({**config.to_dict(), "architectures": ["HF_ColBERT"]})
    )
    metadata = {"dim": WIDTH, "query_maxlen": FILLED, "doc_maxlen": 40, "mask_punctuation": True}
    (path / "artifact.metadata").write_text(json.dumps(metadata))
    return made


def filled(*ids: int) -> list[int]:
    return [*ids, *[FILL] * (FILLED - len(ids))]


def by_hand(path: Path, made: Any, ids: list[int], attend: bool) -> torch.Tensor:
    """Each token's vector. Source: sentence-transformers' MultiVectorEncoder."""
    end = len(ids)
    while not attend and ids[end - 1] == FILL:
        end -= 1
    mask = (torch.arange(len(ids)) < end).long()[None]
    with torch.no_grad():
        hidden = made(torch.tensor(ids)[None], attention_mask=mask).last_hidden_state[0]
    place = path / "1_Dense"
    weights = load_file((place if place.exists() else path) / "model.safetensors")
    vectors = hidden @ weights["linear.weight"].T
    if "residual.weight" in weights:
        vectors = vectors + hidden @ weights["residual.weight"].T
    return torch.nn.functional.normalize(vectors, dim=-1)


def opened(runtime: str, path: Path, task: str, cache: Path, **options: Any) -> Runtime:
    made = create(
        RuntimeSettings(
            name="m", runtime=runtime, source=path, cache_dir=cache, task=task, options=options,
            max_length=120, edges=(16, 120), max_size=8, threads=1,
        )
    )  # fmt: skip
    made.load()
    return made


def batch(rows: list[list[int]], kinds: list[list[int]] | None = None) -> Batch:
    columns = {"input_ids": rows, **({"token_type_ids": kinds} if kinds else {})}
    inputs = {
        name: Ragged(
            "INT64",
            np.concatenate(column).astype(np.int64),
            tuple((len(row),) for row in column),
        )
        for name, column in columns.items()
    }
    return Batch(len(rows), np.array([len(row) for row in rows]), inputs)


QUERIES = (filled(2, 5, 7, 9, 3), filled(2, 5, 8, 3), filled(*range(2, 2 + FILLED)))


@pytest.mark.parametrize(
    ("attend", "residual", "backends"),
    [
        (False, False, ("torch", "onnxruntime", "openvino")),
        (True, True, ("torch",)),
    ],
)
def test_each_token_has_a_vector_and_what_fills_a_query_up_is_seen_where_the_folder_says(
    tmp_path, attend, residual, backends
):
    made = colbert(tmp_path / "m", attend=attend, residual=residual)
    rows = [*QUERIES, *DOCUMENTS]
    theirs = [by_hand(tmp_path / "m", made, row, attend) for row in rows]
    for backend in backends:
        runtime = opened(backend, tmp_path / "m", "embed", tmp_path / "cache")
        (spec,) = runtime.limits().outputs
        assert (spec.name, spec.shape) == ("token_embeddings", (-1, -1, WIDTH))
        found = runtime.run(batch(rows)).outputs["token_embeddings"]
        assert found.shapes == tuple((len(row), WIDTH) for row in rows)
        for ours, wanted in zip(found.rows(), theirs, strict=True):
            np.testing.assert_allclose(ours, wanted.reshape(-1), atol=WORST)


def maxsim(query: torch.Tensor, document: torch.Tensor) -> float:
    return float((query @ document.T).amax(1).sum())


def scored_by_hand(path: Path, made: Any, pair: tuple[list[int], list[int]]) -> float:
    tokens = pooling_of(path, None, None).tokens
    kept = [at for at, token in enumerate(pair[1]) if token not in tokens.skipped]
    query, document = (by_hand(path, made, ids, tokens.attended) for ids in pair)
    return maxsim(query, document[kept])


@pytest.mark.parametrize(
    ("kind", "backends"),
    [
        (colbert, ("torch", "onnxruntime", "openvino")),  # the last two of one export
        (pylate, ("torch",)),
        (stanford, ("torch",)),
    ],
)
def test_pairs_score_as_their_tokens_do(tmp_path, kind, backends):
    made = kind(tmp_path / "m")
    pairs = [(query, document) for query in QUERIES for document in DOCUMENTS]
    theirs = [scored_by_hand(tmp_path / "m", made, pair) for pair in pairs]
    assert len({round(score, 3) for score in theirs}) == len(theirs)
    kinds = [[0] * len(query) + [1] * len(document) for query, document in pairs]
    for backend in backends:
        runtime = opened(backend, tmp_path / "m", "rerank", tmp_path / "cache")
        result = runtime.run(batch([[*query, *document] for query, document in pairs], kinds))
        np.testing.assert_allclose(result.outputs["maxsim"].data, theirs, atol=WORST)
        # Each query once and each document by itself, padded to their own longest.
        each = len(QUERIES) * FILLED + len(pairs) * max(map(len, DOCUMENTS))
        assert result.padded_tokens == each


def test_a_pairs_score_is_the_same_alone_and_may_be_a_mean(tmp_path):
    made = colbert(tmp_path / "m", similarity_fn_name="meanmaxsim")
    runtime = opened("torch", tmp_path / "m", "rerank", tmp_path / "cache")
    runtime.warm()
    pair = QUERIES[0], DOCUMENTS[1]
    row = [*pair[0], *pair[1]], [0] * len(pair[0]) + [1] * len(pair[1])
    (alone,) = runtime.run(batch([row[0]], [row[1]])).outputs["maxsim"].data
    wanted = scored_by_hand(tmp_path / "m", made, pair) / FILLED
    assert alone == pytest.approx(wanted, abs=WORST)
    lacking = batch([row[0], row[0], row[0]], [row[1], [0] * len(row[0]), [1] * len(row[0])])
    together = runtime.run(lacking).outputs["maxsim"].data
    np.testing.assert_allclose(together, [alone, 0, 0], atol=WORST)


def test_a_pair_of_ids_that_no_table_has_is_its_callers_fault(tmp_path):
    colbert(tmp_path / "m")
    runtime = opened("torch", tmp_path / "m", "rerank", tmp_path)
    good = [2, 5, 3], [0, 0, 1]
    for ids, kinds, said in (
        (good[0], [0, 0, 1, 1], "row 1 of 'token_type_ids' has 4 elements, and of 'input_ids' 3"),
        ([2, 900, 3], good[1], "row 1 of input 'input_ids' holds 900"),
        (good[0], [0, 0, 2], "row 1 of input 'token_type_ids' holds 2, it must be 0 to 1"),
    ):
        with pytest.raises(BadRows, match=said):
            runtime.run(batch([good[0], ids], [good[1], kinds]))


def test_any_encoder_gives_its_tokens_vectors_where_an_option_says_so(tmp_path):
    made = network(tmp_path / "m", "distilbert")
    options = {"pooling": "tokens", "normalize": True}
    runtime = opened("torch", tmp_path / "m", "embed", tmp_path, **options)
    found = runtime.run(batch([DOCUMENTS[0]])).outputs["token_embeddings"]
    with torch.no_grad():
        hidden = made(torch.tensor(DOCUMENTS[0])[None]).last_hidden_state[0]
    wanted = torch.nn.functional.normalize(hidden, dim=-1)
    np.testing.assert_allclose(found.data, wanted.reshape(-1), atol=WORST)


def asked(task: str, **options: Any) -> catalog.FileRequirements:
    return catalog.FileRequirements("torch", task, options, "fp32", None)


def test_a_folder_of_token_vectors_is_checked_before_it_is_loaded(tmp_path):
    colbert(tmp_path / "m")
    for task in ("embed", "rerank"):
        catalog.check_files(tmp_path / "m", asked(task))
    for task in ("tensors", "classify"):
        with pytest.raises(LoadError, match=f"must be embed or rerank, not {task}"):
            catalog.check_files(tmp_path / "m", asked(task))
    network(tmp_path / "n")
    with pytest.raises(LoadError, match="needs one that ends with ForSequenceClassification"):
        catalog.check_files(tmp_path / "n", asked("rerank"))
    catalog.check_files(tmp_path / "n", asked("rerank", pooling="tokens"))


def changed(file: Path, **said: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | said))


@pytest.mark.parametrize(
    ("file", "said", "sentence"),
    [
        ("2_MultiVectorMask/config.json", {"keep_only_token_ids": [7]}, "keep_only_token_ids, and"),
        ("2_MultiVectorMask/config.json", {"skiplist_tasks": ["query"]}, "other than document"),
        ("1_Dense/config.json", {"module_input_name": "sentence_embedding"}, "it has to be token_"),
        ("sentence_bert_config.json", {"document_length": "long"}, "lengths must be whole numbers"),
        ("sentence_bert_config.json", {"query_expansion": {"length": 8}}, "with strategy"),
        (
            "sentence_bert_config.json",
            {"query_expansion": {"strategy": "min", "length": 8, "token": "<none>"}},
            "filled up with <none>, which its tokenizer.json does not have",
        ),
        ("config_sentence_transformers.json", {"prompts": {"query": 1}}, "prompts, prefixes and"),
        ("config_sentence_transformers.json", {"prompts": [1]}, "prompts, prefixes and"),
        ("2_MultiVectorMask/config.json", {"skiplist_words": 5}, "skiplist_words texts"),
    ],
)
def test_what_a_folder_of_token_vectors_says_wrong_is_named(tmp_path, file, said, sentence):
    colbert(tmp_path / "m")
    changed(tmp_path / "m" / file, **said)
    with pytest.raises(LoadError, match=sentence):
        catalog.check_files(tmp_path / "m", asked("embed"))


def test_modules_that_are_not_supported_beside_token_vectors_are_named(tmp_path):
    colbert(tmp_path / "m")
    file = tmp_path / "m/modules.json"
    modules = json.loads(file.read_text())
    pooled = {"path": "4", "type": "sentence_transformers.HierarchicalTokenPooling"}
    file.write_text(json.dumps([*modules, pooled]))
    with pytest.raises(LoadError, match="HierarchicalTokenPooling is not supported beside"):
        catalog.check_files(tmp_path / "m", asked("embed"))
    file.write_text(json.dumps(modules[:2]))
    with pytest.raises(LoadError, match="are Transformer, Dense; the order has to be"):
        catalog.check_files(tmp_path / "m", asked("embed"))
