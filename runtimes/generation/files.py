"""Is a folder that of a language model that transformers itself runs, without importing it?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runtimes import folder as model_folder
from runtimes.errors import LoadError
from runtimes.generation.requests import MAX_PENALTY, MIN_PENALTY, Defaults

_HEADS = ("ForCausalLM", "LMHeadModel")
_LAYERS = frozenset({"full_attention", "sliding_attention"})
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
_GENERATION = "generation_config.json"
_BOUNDS = {
    "temperature": (0, 1e4), "top_p": (1e-6, 1), "top_k": (-1, 2**31), "min_p": (0, 1),
    "repetition_penalty": (MIN_PENALTY, MAX_PENALTY),
}  # fmt: skip


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
    said = config.get("sliding_window")
    window = said if type(said) is int else 0
    windows = config.get("use_sliding_window", window > 0) and kinds != {"full_attention"}
    if runtime == "openvino" and windows and (longest is None or longest > window):
        raise LoadError(
            f"{file}: its attention looks back {window} tokens, and runtime openvino looks at all; "
            f"set lengths.max to {window} or less, or use runtime torch"
        )
    _positions(file, config, longest)
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


def _positions(file: Path, config: dict[str, Any], longest: int | None) -> None:
    """Raises `LoadError` where the angles of all positions depend on the longest sequence of a
    step, so that an answer would depend on who is beside it."""
    said = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(said, dict):
        return
    kind = said.get("rope_type", said.get("type"))
    if kind not in ("dynamic", "longrope", "su"):
        return
    name = "original_max_position_embeddings"
    own = said.get(name, config.get(name, config.get("max_position_embeddings")))
    if type(own) is int and longest is not None and longest <= own:
        return
    how = f"set lengths.max to {own} or less, or use" if type(own) is int else "use"
    raise LoadError(
        f"{file}: its positions are stretched for prompts that are long ({kind}), for all in a "
        f"step at once; {how} runtime vllm"
    )


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
    for name, (least, most) in _BOUNDS.items():
        value = said.get(name)
        if value is None:
            continue
        kinds = (int,) if name == "top_k" else (int, float)
        if type(value) not in kinds or not least <= value <= most:
            words = "an integer" if name == "top_k" else "a number"
            raise LoadError(
                f"{file}: {name} is {value!r}; it must be {words} from {least:g} to {most:g}"
            )
        given[name] = value
    tokens = said.get("max_new_tokens")
    return Defaults(**given, max_tokens=tokens if type(tokens) is int and tokens > 0 else None)
