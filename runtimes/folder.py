"""What a Hugging Face folder says of its model: its family, its head, its pooling, its length.

A sentence-transformers folder lists modules (`modules.json`): Transformer, Pooling, then Dense and
Normalize in any number; or a masked language model and SpladePooling. Each has a folder with a
`config.json`. What is not supported is refused by name. Files are read as JSON; no model is loaded
and no code of the folder's runs.

Source: sentence-transformers 6.2 (Pooling, Dense, Normalize, SpladePooling, CrossEncoder),
transformers 5.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runtimes.errors import LoadError

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
SPLADE = "splade"  # the mode of a sparse vector
_FLAGS = {  # of configurations before `pooling_mode`
    "pooling_mode_cls_token": "cls",
    **{f"pooling_mode_{mode}": mode for mode in ("lasttoken", "mean_sqrt_len_tokens")},
    **{f"pooling_mode_{mode}_tokens": mode for mode in ("max", "mean", "weightedmean")},
}
# Families of encoders that were compared with transformers (tests/runtimes/test_families.py).
FAMILIES = frozenset(
    {
        *("albert", "bert", "camembert", "data2vec-text", "deberta", "deberta-v2", "distilbert"),
        *("electra", "ernie", "mpnet", "modernbert", "nomic_bert", "roberta", "xlm-roberta"),
        *("xlm-roberta-xl", "qwen2", "qwen3", "gemma3_text", "llama", "mistral"),
    }
)
# Their first position is that of the first token after the padding's: two positions are no token's.
_OFFSET = frozenset(
    {"camembert", "data2vec-text", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"}
)
_ACTIVATIONS = {
    "Identity": None,
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "Sigmoid": "sigmoid",
}
NO_POOLING = (
    "declares no pooling (modules.json): set the option pooling (mean or cls), and normalize where "
    "the model was trained so"
)


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer over an embedding; its weights lie in `folder`/model.safetensors."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool
    activation: str | None  # tanh, relu, gelu, sigmoid; None: none


@dataclass(frozen=True, slots=True)
class Splade:
    """A weight for each entry of the vocabulary, of a masked language model's logits: log(1 + x) of
    the positive ones, once or `twice`, and over a text's tokens their largest or their sum."""

    sums: bool = False
    twice: bool = False


@dataclass(frozen=True, slots=True)
class Pooling:
    """How one vector is made of a text's tokens.

    modes: of `MODES`, their vectors side by side; () where the model has pooled already. dense: the
    layers after it. normalize: to Euclidean length 1, last. splade: for a sparse vector instead.
    """

    modes: tuple[str, ...] = ("mean",)
    normalize: bool = False
    dense: tuple[Dense, ...] = ()
    splade: Splade | None = None

    @property
    def plain(self) -> bool:
        """Whether it is the mean, the first token, or nothing to pool; perhaps normalised."""
        return self.modes in ((), ("mean",), ("cls",)) and not self.dense and not self.splade


def read(file: Path) -> Any:
    """A JSON file. Raises `LoadError`."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"{file} cannot be read as JSON: {error}") from error


def configuration(folder: Path) -> dict[str, Any]:
    """The folder's `config.json`. Raises `LoadError`."""
    file = folder / "config.json"
    found = read(file)
    if not isinstance(found, dict):
        raise LoadError(f"{file} is no JSON object")
    return found


def check(folder: Path, task: str) -> None:
    """Raises `LoadError` for a family, a head or a module that is not supported."""
    config = configuration(folder)
    family = config.get("model_type")
    if family not in FAMILIES:
        raise LoadError(
            f"{folder / 'config.json'}: model_type {family!r} is not supported; supported are "
            f"{', '.join(sorted(FAMILIES))}. Export the model to ONNX and name that file"
        )
    places = config.get("position_embedding_type", "absolute")
    if places != "absolute":
        raise LoadError(
            f"{folder / 'config.json'}: position_embedding_type is {places!r}; only absolute "
            "position embeddings are supported"
        )
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise LoadError(f"{folder / 'config.json'}: it is a decoder; encoders are supported")
    if task == "classify":
        _check_head(folder, config, "ForSequenceClassification", "task classify")
    declared_pooling(folder)


def check_pooling(folder: Path, task: str, pooling: Pooling | None) -> None:
    """Raises `LoadError` for a task or a head that the pooling (`pooling_of`) is not for."""
    if task == "embed" and pooling is None:
        raise LoadError(f"{folder} {NO_POOLING}")
    if pooling is None or pooling.splade is None:
        return
    if task != "embed":
        raise LoadError(f"{folder} makes sparse vectors; its task must be embed, not {task}")
    _check_head(folder, configuration(folder), "ForMaskedLM", "pooling splade")


def _check_head(folder: Path, config: dict[str, Any], ending: str, what: str) -> None:
    heads = [name for name in config.get("architectures") or () if isinstance(name, str)]
    if not any(name.endswith(ending) for name in heads):
        raise LoadError(
            f"{folder / 'config.json'}: architectures is {', '.join(heads) or 'missing'}; {what} "
            f"needs one that ends with {ending}"
        )


def declared_pooling(folder: Path) -> Pooling | None:
    """What the folder's modules say; None where it has none. Raises `LoadError`."""
    modules = _modules(folder)
    kinds = [kind for kind, _ in modules]
    if "SpladePooling" in kinds:
        return Pooling((), splade=_splade(modules, folder))
    foreign = sorted(set(kinds) - {"Transformer", "Pooling", "Dense", "Normalize"})
    if foreign:
        raise LoadError(
            f"{folder / 'modules.json'}: {', '.join(foreign)} is not supported; Pooling, Dense, "
            "Normalize and SpladePooling are"
        )
    if "Pooling" not in kinds:
        return None
    if kinds[:2] != ["Transformer", "Pooling"] or "Normalize" in kinds[2:-1]:
        raise LoadError(
            f"{folder / 'modules.json'}: the modules are {', '.join(kinds)}; the order has to be "
            "Transformer, Pooling, Dense (any number), Normalize"
        )
    modes = _modes(read(modules[1][1] / "config.json"), folder)
    dense = tuple(_dense(place) for kind, place in modules[2:] if kind == "Dense")
    return Pooling(modes, "Normalize" in kinds, dense)


def pooling_of(folder: Path, mode: str | None, normalize: bool | None) -> Pooling | None:
    """What the options `pooling` and `normalize` say, else what the folder declares; None where
    neither does. Raises `LoadError`."""
    found = declared_pooling(folder)
    if mode == SPLADE:
        found = Pooling((), splade=found.splade if found and found.splade else Splade())
    elif mode:
        found = replace(found or Pooling(), modes=(mode,), splade=None)
    if found and found.splade and normalize:
        raise LoadError(f"{folder}: option normalize is true; a sparse vector is not normalised")
    if found and normalize is not None:
        found = replace(found, normalize=normalize)
    return found


def module_files(folder: Path) -> Sequence[Path]:
    """The modules' configurations and weights, for digests."""
    names = ("config.json", "model.safetensors")
    places = [place / name for _, place in _modules(folder) for name in names if place != folder]
    return [file for file in places if file.is_file()]


def longest(folder: Path) -> int | None:
    """Tokens of the longest row that the network takes, special tokens included; None where the
    folder does not say. Raises `LoadError`."""
    config = configuration(folder)
    positions = config.get("max_position_embeddings")
    if type(positions) is not int or positions < 1:
        return None
    if config.get("model_type") in _OFFSET:
        padding = config.get("pad_token_id")
        positions -= (padding if type(padding) is int else 1) + 1
    return max(1, positions)


def _modes(config: Any, folder: Path) -> tuple[str, ...]:
    if not isinstance(config, dict):
        raise LoadError(f"{folder}: the Pooling module's config.json is no JSON object")
    named = config.get("pooling_mode")
    chosen = [named] if isinstance(named, str) else list(named or ())
    if not chosen:
        flags = [key for key in config if key.startswith("pooling_mode_") and config[key] is True]
        chosen = [_FLAGS.get(key, key) for key in flags]
        chosen.sort(key=lambda mode: list(_FLAGS.values()).index(mode) if mode in MODES else -1)
    unknown = [str(mode) for mode in chosen if mode not in MODES]
    if unknown or not chosen:
        raise LoadError(
            f"{folder}: pooling {', '.join(unknown) or 'unnamed'} is not supported; "
            f"{', '.join(MODES)} are"
        )
    if config.get("include_prompt") is False and _has_prompts(folder):
        raise LoadError(
            f"{folder}: include_prompt is false in the Pooling module, which is not supported: "
            "pooling would have to leave out the prompt's tokens"
        )
    return tuple(chosen)


def _splade(modules: list[tuple[str, Path]], folder: Path) -> Splade:
    kinds = [kind for kind, _ in modules]
    if kinds not in (["MLMTransformer", "SpladePooling"], ["Transformer", "SpladePooling"]):
        raise LoadError(
            f"{folder / 'modules.json'}: the modules are {', '.join(kinds)}; of a sparse model "
            "they have to be MLMTransformer and SpladePooling"
        )
    file = modules[1][1] / "config.json"
    config = read(file)
    if not isinstance(config, dict):
        raise LoadError(f"{file} is no JSON object")
    strategy = config.get("pooling_strategy", "max")
    function = config.get("activation_function", "relu")
    if strategy not in ("max", "sum") or function not in ("relu", "log1p_relu"):
        raise LoadError(
            f"{file}: pooling_strategy {strategy!r} with activation_function {function!r} is not "
            "supported; max and sum, relu and log1p_relu are"
        )
    return Splade(sums=strategy == "sum", twice=function == "log1p_relu")


def _has_prompts(folder: Path) -> bool:
    file = folder / "config_sentence_transformers.json"
    said = read(file) if file.is_file() else {}
    prompts = said.get("prompts") if isinstance(said, dict) else None
    return isinstance(prompts, dict) and any(prompts.values())


def _dense(folder: Path) -> Dense:
    file = folder / "config.json"
    config = read(file)
    try:
        sizes = int(config["in_features"]), int(config["out_features"])
        bias = bool(config.get("bias", True))
        function = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LoadError(f"{file} names no in_features and out_features") from error
    kind = function.rsplit(".", 1)[-1]
    if kind not in _ACTIVATIONS or not function.startswith("torch.nn."):
        raise LoadError(
            f"{file}: activation_function {function} is not supported; "
            f"{', '.join(_ACTIVATIONS)} of torch.nn are"
        )
    if not (folder / "model.safetensors").is_file():
        raise LoadError(f"{folder} holds no model.safetensors; a Dense module needs one")
    return Dense(folder, *sizes, bias, _ACTIVATIONS[kind])


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """(kind, folder) of each module; a folder outside the model's is refused."""
    listing = folder / "modules.json"
    if not listing.is_file():
        return []
    try:
        named = [(str(module["type"]), str(module["path"])) for module in read(listing)]
    except (KeyError, TypeError) as error:
        raise LoadError(f"{listing} is no list of modules with type and path") from error
    for _, place in named:
        if Path(place).is_absolute() or ".." in Path(place).parts:
            raise LoadError(f"{listing} names a folder outside the model's: {place}")
    return [(kind.rsplit(".", 1)[-1], folder / place) for kind, place in named]
