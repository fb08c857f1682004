"""The example's model: the same at every making, and what engines read in a folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from examples import make_llm
from examples.make_llm import Sizes

SMALL = Sizes(hidden=64, layers=1, vocabulary=400, context=128)


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def test_one_size_makes_one_model_byte_for_byte(tmp_path: Path) -> None:
    first, second = make_llm.make(tmp_path / "a", SMALL), make_llm.make(tmp_path / "b", SMALL)
    assert digests(first) == digests(second)
    assert digests(make_llm.make(tmp_path / "c", Sizes(64, 2, 400, 128))) != digests(first)


def test_the_folder_says_what_it_holds(tmp_path: Path) -> None:
    folder = make_llm.make(tmp_path, SMALL)
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    assert weights["model.embed_tokens.weight"].shape == (400, 64)
    assert sum("input_layernorm" in name for name in weights) == config["num_hidden_layers"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() <= config["vocab_size"]
    assert tokenizer.token_to_id("<|end|>") == config["eos_token_id"]
    text = "The river turns 12 wheels, näïve ☃."
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize("wrong", [["--hidden", "100"], ["--vocabulary", "10"], ["--layers", "0"]])
def test_sizes_that_make_no_model_are_refused(
    tmp_path: Path, wrong: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("sys.argv", ["make_llm", str(tmp_path), *wrong])
    with pytest.raises(SystemExit):
        make_llm.main()
    assert wrong[0] in capsys.readouterr().err
