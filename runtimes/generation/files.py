"""Is a folder that of a language model that transformers itself runs, without importing it?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runtimes import folder as model_folder
from runtimes.errors import LoadError
from runtimes.generation.requests import Defaults

_HEADS = ("ForCausalLM", "LMHeadModel")
_LAYERS = frozenset({"full_attention", "sliding_attention"})
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
_GENERATION = "generation_config.json"


def check(folder: Path, longest: int | None, runtime: str) -> int:
    """The longest prompt and output together that it takes. Raises `LoadError`, also for `longest`
    above that. What files may hold code is looked at elsewhere (`inspection`)."""
    file = folder / "config.json"
    config = model_folder.configuration(folder)
    heads = config.get("architectures")
    named = [name for name in heads if isinstance(name, str)] if isinstance(heads, list) else []
    if not any(name.endswith(_HEADS) for name in named):
        raise LoadError(
            f"{file}: architectures is {', '.join(named) or 'missing'}; task generate needs one "
            f"that ends with {' or '.join(_HEADS)}"
        )
    if config.get("quantization_config"):
        raise LoadError(
            f"{file}: its weights are quantised, which runtime {runtime} does not read; use "
            "runtime vllm, or the model as it was before"
        )
    layers = config.get("layer_types")
    kinds = {str(kind) for kind in layers} if isinstance(layers, list) else set()
    if kinds - _LAYERS:
        raise LoadError(
            f"{file}: it has layers of {', '.join(sorted(kinds - _LAYERS))}; runtime "
            f"{runtime} generates with attention alone; use runtime vllm"
        )
    window = config.get("sliding_window")
    windows = config.get("use_sliding_window", type(window) is int) and kinds != {"full_attention"}
    if runtime == "openvino" and windows and (longest is None or longest > (window or 0)):
        raise LoadError(
            f"{file}: its attention looks back {window} tokens, and runtime openvino looks at all; "
            f"set lengths.max to {window} or less, or use runtime torch"
        )
    for needed, why in (("*.safetensors", "weights"), ("tokenizer.json", "fast tokeniser")):
        if not any(folder.glob(needed)):
            raise LoadError(f"{folder} has no {needed}, the model's {why}; add the model's own")
    _defaults(folder, config)
    taken = next((config[name] for name in _LENGTHS if type(config.get(name)) is int), None)
    if taken is None and longest is None:
        raise LoadError(f"{file} does not say how long a prompt may be; set lengths.max")
    if taken is not None and longest is not None and longest > taken:
        raise LoadError(
            f"{file}: {taken} tokens are its most, lengths.max is {longest}; set lengths.max to "
            f"{taken} or less"
        )
    return int(longest or taken or 0)


def defaults(folder: Path) -> Defaults:
    """Of requests that do not say how to draw. Raises `LoadError`."""
    return _defaults(folder, model_folder.configuration(folder))


def _defaults(folder: Path, config: dict[str, Any]) -> Defaults:
    file = folder / _GENERATION
    said = model_folder.read(file) if file.is_file() else {}
    if not isinstance(said, dict):
        raise LoadError(f"{file} is no JSON object")
    ends = said.get("eos_token_id", config.get("eos_token_id"))
    listed = ends if isinstance(ends, list) else [ends] * (ends is not None)
    if any(type(end) is not int for end in listed):
        raise LoadError(f"{file}: eos_token_id is {ends!r}; it must be a token id, or some")
    given: dict[str, Any] = {"ends": frozenset(listed)}
    names = {"temperature": 0, "top_p": 0, "top_k": -1, "min_p": 0, "repetition_penalty": 0}
    for name, least in names.items():
        value = said.get(name)
        if value is None:
            continue
        if type(value) not in (int, float) or value < least:
            raise LoadError(f"{file}: {name} is {value!r}; it must be a number from {least} on")
        given[name] = value
    most = said.get("max_new_tokens")
    return Defaults(**given, max_tokens=most if type(most) is int and most > 0 else None)
