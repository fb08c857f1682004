"""What a folder lets requests for embeddings choose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deployments.contract.description import EmbeddingChoices
from deployments.replica import embedding_choices
from runtimes.errors import LoadError

PROMPTS = {"query": "query: ", "document": ""}


def folder(place: Path, said: Any = None, config: Any = None) -> Path:
    for name, content in ((embedding_choices.FILE, said), ("config.json", config)):
        if content is not None:
            (place / name).write_text(json.dumps(content))
    return place


def test_a_folder_says_its_prompts_and_dimensions(tmp_path: Path) -> None:
    said = {"prompts": PROMPTS, "default_prompt_name": "query", "truncate_dim": 64}
    place = folder(tmp_path, said, {"matryoshka_dimensions": [256, 64, 64]})
    wanted = EmbeddingChoices(PROMPTS, "query", (64, 256), 64)
    assert embedding_choices.read(place, 256) == wanted
    (tmp_path / "onnx").mkdir()
    file = tmp_path / "onnx" / "model.onnx"
    file.touch()
    assert embedding_choices.read(file, 256) == wanted


@pytest.mark.parametrize(
    "said", [None, {}, {"prompts": None, "default_prompt_name": None, "truncate_dim": None}]
)
def test_a_folder_that_says_nothing_offers_nothing(tmp_path: Path, said: Any) -> None:
    assert embedding_choices.read(folder(tmp_path, said, {}), 8) == EmbeddingChoices()
    assert embedding_choices.read(None, 8) == EmbeddingChoices()


def test_a_sparse_models_folder_says_how_many_entries(tmp_path: Path) -> None:
    said = {"max_active_dims": 32, "prompts": {"query": "q: "}, "truncate_dim": 3}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(said))
    found = embedding_choices.read(tmp_path, 256, "indices")
    assert found == EmbeddingChoices({"query": "q: "}, "", (), 32, "indices")


def test_what_is_wider_than_the_models_vectors_cuts_nothing(tmp_path: Path) -> None:
    place = folder(tmp_path, {"truncate_dim": 9}, {"matryoshka_dimensions": 4})
    assert embedding_choices.read(place, 8) == EmbeddingChoices(dimensions=(4,))


@pytest.mark.parametrize(
    ("said", "config", "words"),
    [
        ([], {}, "is no JSON object"),
        ({"prompts": ["a"]}, {}, "prompts must be texts by their names"),
        ({"prompts": {"a": 1}}, {}, "prompts must be texts by their names"),
        ({"prompts": {"a": "x" * 10_001}}, {}, "prompts may be 100, of 10000 characters each"),
        ({"prompts": {str(n): "x" for n in range(101)}}, {}, "prompts may be 100"),
        ({"default_prompt_name": "q"}, {}, "default_prompt_name is 'q', which is no name"),
        ({"default_prompt_name": ["q"]}, {}, "default_prompt_name is ..q.., which is no name"),
        ({"truncate_dim": "9"}, {}, "truncate_dim has '9'; it must be whole numbers"),
        ({}, {"matryoshka_dimensions": [4, "8"]}, "matryoshka_dimensions has '8'; it must be"),
        ({}, {"matryoshka_dimensions": 4.5}, r"matryoshka_dimensions has 4\.5; it must be"),
    ],
)
def test_what_could_not_be_obeyed_is_refused(
    tmp_path: Path, said: Any, config: Any, words: str
) -> None:
    with pytest.raises(LoadError, match=words):
        embedding_choices.read(folder(tmp_path, said, config), 8)
