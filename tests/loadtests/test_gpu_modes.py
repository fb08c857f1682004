"""The bench for GPUs: its settings, and that the BERTs it makes are whole."""

from __future__ import annotations

import numpy as np
from safetensors import safe_open

from deployments.settings.tree import Settings
from loadtests.benches import gpu_modes, random_bert
from loadtests.benches.random_bert import BertSize


def test_every_way_is_a_model_that_the_settings_take():
    made = gpu_modes.settings_of(gpu_modes.MINILM, gpu_modes.WAYS)
    models = Settings.model_validate(made).models
    found = [
        (models[f"way{at}"].runtime, models[f"way{at}"].precision) for at in range(len(models))
    ]
    assert found == [(way.runtime, way.precision) for way in gpu_modes.WAYS.values()]


def test_random_bert_is_made_once_with_every_weight(tmp_path, monkeypatch):
    monkeypatch.setitem(random_bert.SIZES, "tiny", BertSize(layers=2, hidden=16, heads=2))
    folder = random_bert.random_bert("tiny", tmp_path / "bert")
    file = folder / "model.safetensors"
    with safe_open(file, "numpy") as weights:
        names = set(weights.keys())
        assert weights.get_tensor("encoder.layer.1.output.dense.weight").shape == (16, 64)
        assert np.std(weights.get_tensor("embeddings.word_embeddings.weight")) > 0.01
    assert len(names) == 3 + 2 + 2 * 16 + 2
    stamp = file.stat().st_mtime_ns
    assert random_bert.random_bert("tiny", tmp_path / "bert") == folder
    assert file.stat().st_mtime_ns == stamp
