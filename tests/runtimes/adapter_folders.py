"""Folders of LoRA adapters, as PEFT writes them, with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file


def write_adapter(
    folder: Path, hidden: int, layers: int = 1, rank: int = 8, seed: int = 1, **config: Any
) -> Path:
    """Of the projections of queries, which are `hidden` wide. Returns the folder."""
    draw, weights = np.random.default_rng(seed), {}
    for layer in range(layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        for part, shape in (("lora_A", (rank, hidden)), ("lora_B", (hidden, rank))):
            values = draw.normal(0, 0.5, shape).astype(np.float32)
            weights[f"{name}.{part}.weight"] = values
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    said = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 16,
        "target_modules": ["q_proj"], "bias": "none", "base_model_name_or_path": "base",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(said | config))
    return folder
