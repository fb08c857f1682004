"""Does an adapter's folder hold a LoRA adapter that its model can run? Read without running it.

The folder is as PEFT's `save_pretrained` writes it: `adapter_config.json` and
`adapter_model.safetensors`. Weights are read as safetensors only, and nothing in it may be code.
What vLLM would refuse while it serves (DoRA, modules trained as a whole, biases, a rank above the
model's) is refused here, and so is a tensor that does not fit the model's tensor of that name.
Source: PEFT's LoraConfig; vLLM's PEFTHelper, 0.32.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtimes.errors import LoadError
from runtimes.source import check_weights, streamed_weights
from runtimes.vllm import inspection

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that an engine can be started for
FIRST_RANK = 16  # where no adapter says more
_MAX_CONFIG_BYTES = 1 << 20
_MAX_FILES = 100
_PREFIX, _DOWN, _UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"


def check(folder: Path, base: Path | None, max_rank: int = RANKS[-1]) -> int:
    """The adapter's rank. `base`: the model's folder, None: not known. Raises LoadError, which
    names the file and what would be right."""
    if not (folder / CONFIG).is_file():
        raise LoadError(f"{folder} is no LoRA adapter: it has no {CONFIG}")
    if sum(len(files) for _, _, files in os.walk(folder)) > _MAX_FILES:
        raise LoadError(f"{folder} has more than {_MAX_FILES} files; must be an adapter alone")
    inspection.check([str(folder)], may_trust=False)
    rank = _rank(folder / CONFIG)
    if rank > max_rank:
        raise LoadError(
            f"{folder / CONFIG} has rank {rank}, above {max_rank}, which the model's replicas are "
            f"started for; must be at most that, or options.max_lora_rank {_engine_rank(rank)}"
        )
    file = folder / WEIGHTS
    if not file.is_file():
        raise LoadError(f"{folder} has no {WEIGHTS}; must have the adapter's weights")
    shapes = check_weights(file)
    _check_shapes(file, shapes, rank)
    if base is not None:
        _check_fits(file, shapes, base)
    return rank


def largest_rank(folders: list[Path]) -> int:
    """The rank to start an engine for, so that it can run all of these. Raises LoadError."""
    ranks = [_rank(folder / CONFIG) for folder in folders if (folder / CONFIG).is_file()]
    return _engine_rank(max([FIRST_RANK, *ranks]))


def _engine_rank(rank: int) -> int:
    return next(each for each in RANKS if each >= rank)


def _rank(file: Path) -> int:
    config = _config(file)
    if config.get("peft_type") != "LORA":
        raise LoadError(f"{file}: peft_type is {config.get('peft_type')!r}; must be 'LORA'")
    for name, plain in (("use_dora", False), ("modules_to_save", None), ("bias", "none")):
        if config.get(name) not in (plain, None, [], False):
            raise LoadError(f"{file}: {name} is {config[name]!r}, which no engine here can run")
    pattern = config.get("rank_pattern") or {}
    if not isinstance(pattern, dict):
        raise LoadError(f"{file}: rank_pattern is no mapping; must be one, or left out")
    for name, rank in (("r", config.get("r")), *pattern.items()):
        if type(rank) is not int or not 1 <= rank <= RANKS[-1]:
            raise LoadError(f"{file}: {name} is {rank!r}; must be a rank from 1 to {RANKS[-1]}")
    return int(max([config["r"], *pattern.values()]))


def _config(file: Path) -> Mapping[str, Any]:
    try:
        with file.open("rb") as stream:
            raw = stream.read(_MAX_CONFIG_BYTES + 1)
        if len(raw) > _MAX_CONFIG_BYTES:
            raise LoadError(f"{file} is larger than {_MAX_CONFIG_BYTES} bytes")
        found = json.loads(raw)
    except (OSError, ValueError, RecursionError) as fault:
        raise LoadError(f"{file} cannot be read: {fault}") from None
    if not isinstance(found, dict):
        raise LoadError(f"{file} is no JSON object")
    return found


def _check_shapes(file: Path, shapes: Mapping[str, tuple[int, ...]], rank: int) -> None:
    """Each module has two matrices, of one rank, which is no higher than the folder says."""
    if not shapes:
        raise LoadError(f"{file} has no tensors")
    for name, shape in shapes.items():
        at, other = (0, _UP) if name.endswith(_DOWN) else (1, _DOWN)
        if not name.endswith((_DOWN, _UP)) or len(shape) != 2:
            raise LoadError(f"{file}: tensor {name[:200]} {list(shape)} is no matrix of LoRA")
        pair = shapes.get(name.removesuffix(_DOWN).removesuffix(_UP) + other, ())
        if len(pair) != 2 or pair[1 - at] != shape[at]:
            raise LoadError(f"{file}: tensor {name[:200]} {list(shape)} has no fitting {other}")
        if not 1 <= shape[at] <= rank:
            raise LoadError(
                f"{file}: tensor {name[:200]} is of rank {shape[at]}; {CONFIG} says {rank} at most"
            )


def _check_fits(file: Path, shapes: Mapping[str, tuple[int, ...]], base: Path) -> None:
    """Against the model's tensors of the same names; others may be stored under other names."""
    known: dict[str, tuple[int, ...]] = {}
    for weights in streamed_weights(base) if base.is_dir() else ():
        known |= check_weights(weights)
    for name, shape in shapes.items():
        module = name.removeprefix(_PREFIX).removesuffix(_DOWN).removesuffix(_UP)
        whole = known.get(f"{module}.weight", ())
        at = 1 if name.endswith(_DOWN) else 0
        if len(whole) == 2 and whole[at] != shape[at]:
            raise LoadError(
                f"{file} is of another model: its {name[:200]} is {list(shape)}, and {base} has "
                f"{module[:200]} of {list(whole)}"
            )
