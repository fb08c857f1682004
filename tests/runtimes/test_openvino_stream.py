"""A language model on OpenVINO's paged attention: what is staged, its blocks, what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from examples import make_llm
from runtimes import catalog, exporting
from runtimes.catalog import FileRequirements
from runtimes.errors import LoadError, RunError
from runtimes.generation.engine import Part
from runtimes.openvino import causal
from runtimes.types import RuntimeSettings

pytest.importorskip("openvino", reason="pip install 'headrace[openvino]'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = make_llm.Sizes(hidden=64, layers=1, vocabulary=400, context=256)
    return make_llm.make(tmp_path_factory.mktemp("made") / "llm", sizes)


def settings(folder: Path, cache: Path) -> RuntimeSettings:
    return RuntimeSettings("llm", "openvino", folder, cache, task="generate", threads=1)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def entry(folder: Path, cache: Path) -> Path:
    return exporting.language_model(folder, settings(folder, cache))


@pytest.fixture
def model(entry: Path) -> causal.PagedModel:
    return causal.opened(entry, 1, 256, 4)


def read(model: causal.PagedModel, cache: causal.Blocks, ids: list[int], at: int) -> torch.Tensor:
    return model.step([Part(cache, np.asarray(ids), at)])[0]


def test_a_graph_is_written_once_a_host(
    folder: Path, cache: Path, entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "_run", None)
    assert exporting.language_model(folder, settings(folder, cache)) == entry


def test_numbers_are_those_of_transformers_across_blocks(
    folder: Path, model: causal.PagedModel
) -> None:
    module = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = np.random.default_rng(3).integers(0, 400, 100)
    with torch.inference_mode():
        own = module(torch.from_numpy(ids)[None]).logits[0]
    one, other = model.cache(), model.cache()
    model.step([Part(one, ids[:31], 0), Part(other, ids[:64], 0)])
    found = model.step([Part(one, ids[31:33], 31), Part(other, ids[64:99], 64, wanted=False)])
    assert torch.allclose(found[0], own[32], atol=1e-3)
    assert len(found) == 1
    assert torch.allclose(read(model, other, [int(ids[99])], 99), own[99], atol=1e-3)


def test_a_beginning_that_another_one_read_is_the_same(model: causal.PagedModel) -> None:
    ids = [int(each) for each in np.random.default_rng(4).integers(0, 400, 60)]
    first, second = model.cache(), model.cache()
    whole = read(model, first, ids, 0)
    second.begin_with(first, 48)
    assert torch.allclose(read(model, second, ids[48:], 48), whole, atol=1e-4)
    read(model, second, [1], 48)  # what the second reads is not the first one's
    assert torch.allclose(read(model, first, ids[-1:], 59), whole, atol=1e-4)


def test_blocks_are_free_when_nobody_knows_their_sequence(model: causal.PagedModel) -> None:
    for _ in range(10):  # five of these have all blocks there are
        cache = model.cache()
        read(model, cache, [1] * 64, 0)
        cache.begin_with(model.cache(), 0)
        read(model, cache, [1] * 64, 0)


def test_a_store_without_a_free_block_fails_the_step(model: causal.PagedModel) -> None:
    held = [model.cache() for _ in range(6)]
    for cache in held:
        read(model, cache, [1] * 64, 0)
    with pytest.raises(RunError, match="no block"):
        read(model, model.cache(), [1], 0)
    held[0].cut(0)
    assert read(model, model.cache(), [1] * 64, 0).shape == (400,)


def test_a_graph_that_gives_other_numbers_is_refused(entry: Path, tmp_path: Path) -> None:
    shutil.copytree(entry, tmp_path / "entry")
    numbers = np.load(tmp_path / "entry" / causal.NUMBERS)
    np.save(tmp_path / "entry" / causal.NUMBERS, numbers + 1)
    with pytest.raises(LoadError, match="other numbers"):
        causal.opened(tmp_path / "entry", 1, 256, 4)


@pytest.mark.parametrize(
    ("more", "longest", "refused"),
    [
        ({"sliding_window": 64}, 64, False),
        ({"sliding_window": 64}, 65, True),
        ({"sliding_window": 64}, None, True),
        ({"sliding_window": 64, "use_sliding_window": False}, 256, False),
        ({"sliding_window": 64, "layer_types": ["full_attention"]}, 256, False),
        ({"sliding_window": None}, 256, False),
    ],
)
def test_a_window_of_attention_bounds_the_length(
    folder: Path, tmp_path: Path, more: dict[str, object], longest: int | None, refused: bool
) -> None:
    for file in folder.iterdir():
        shutil.copy(file, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | more))
    asked = FileRequirements("openvino", "generate", {}, "fp32", longest)
    if refused:
        with pytest.raises(LoadError, match=r"set lengths\.max to 64"):
            catalog.check_files(tmp_path, asked)
    else:
        catalog.check_files(tmp_path, asked)
    catalog.check_files(tmp_path, FileRequirements("torch", "generate", {}, "fp32", longest))
