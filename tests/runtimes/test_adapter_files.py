"""What is wrong with an adapter's folder is told before an engine reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from runtimes import adapter_files
from runtimes.errors import LoadError
from tests.runtimes.adapter_folders import write_adapter


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    weight = np.zeros((16, 16), np.float32)
    save_file({"model.layers.0.self_attn.q_proj.weight": weight}, folder / "model.safetensors")
    return folder


def test_an_adapter_that_fits_tells_its_rank(tmp_path: Path, base: Path) -> None:
    assert adapter_files.check(write_adapter(tmp_path / "a", 16, rank=4), base) == 4


def test_an_adapter_of_another_model_is_refused(tmp_path: Path, base: Path) -> None:
    with pytest.raises(LoadError, match=r"of another model: .*q_proj of \[16, 16\]"):
        adapter_files.check(write_adapter(tmp_path / "a", 32), base)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"peft_type": "IA3"}, "must be 'LORA'"),
        ({"use_dora": True}, "use_dora is True, which no engine"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"r": 0}, "must be a rank from 1"),
        ({"r": True}, "must be a rank from 1"),
        ({"r": 4}, r"is of rank 8; adapter_config.json says 4 at most"),
        ({"rank_pattern": {"q_proj": 4096}}, "q_proj is 4096"),
        ({"rank_pattern": [1]}, "rank_pattern is no mapping"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "names code to run; .*code of its own$"),
        ({"padding": "x" * (1 << 20)}, "is larger than"),
    ],
)
def test_what_an_engine_could_not_run_is_refused(
    tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    with pytest.raises(LoadError, match=said):
        adapter_files.check(write_adapter(tmp_path / "a", 16, **config), None)


def test_a_rank_above_the_replicas_is_refused_with_what_would_do(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", 64, rank=24)
    with pytest.raises(LoadError, match=r"at most that, or options.max_lora_rank 32"):
        adapter_files.check(folder, None, 16)
    assert adapter_files.largest_rank([folder]) == 32
    assert adapter_files.largest_rank([]) == 16


@pytest.mark.parametrize("name", ["extra.py", "adapter_model.bin", "more.pkl"])
def test_code_and_pickles_are_refused(tmp_path: Path, name: str) -> None:
    folder = write_adapter(tmp_path / "a", 16)
    (folder / name).write_text("")
    with pytest.raises(LoadError, match=name):
        adapter_files.check(folder, None)


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"a.lora_A.weight": (2, 4)},
        {"a.lora_A.weight": (2, 4), "a.lora_B.weight": (4, 3)},
        {"a.lora_A.weight": (2, 4), "a.lora_B.weight": (4, 2), "a.weight": (4, 4)},
        {"a.lora_A.weight": (8,), "a.lora_B.weight": (4, 2)},
    ],
)
def test_weights_that_are_no_pairs_of_matrices_are_refused(
    tmp_path: Path, tensors: dict[str, tuple[int, ...]]
) -> None:
    folder = write_adapter(tmp_path / "a", 16)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in tensors.items()}
    save_file(zeros, folder / adapter_files.WEIGHTS)
    with pytest.raises(LoadError, match="adapter_model"):
        adapter_files.check(folder, None)


def test_weights_that_are_cut_off_are_refused(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", 16)
    whole = (folder / adapter_files.WEIGHTS).read_bytes()
    (folder / adapter_files.WEIGHTS).write_bytes(whole[:-4])
    with pytest.raises(LoadError, match="fetch or copy the file again"):
        adapter_files.check(folder, None)


def test_a_folder_that_is_no_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no LoRA adapter"):
        adapter_files.check(tmp_path, None)
    (tmp_path / adapter_files.CONFIG).write_text(json.dumps([1]))
    with pytest.raises(LoadError, match="is no JSON object"):
        adapter_files.check(tmp_path, None)
