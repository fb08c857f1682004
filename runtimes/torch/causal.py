"""A causal language model of transformers that reads parts of several sequences in one pass.

All tokens of a step stand in one row, without padding, and only attention knows whose they are: the
function that is registered here with transformers looks at each sequence's own keys and values,
which are kept one buffer a layer. `opened` compares this with the module's own way, so a model that
does not work like that (states in place of attention, biases by distance) is refused when it is
loaded. Source: transformers' AttentionInterface. This module imports torch and transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import AttentionInterface, AutoModelForCausalLM

from runtimes.errors import LoadError
from runtimes.generation import engine
from runtimes.generation.engine import Part
from runtimes.torch.runner import Faults

_PIECE = 64  # places by which a buffer grows
_NAME = "headrace_parts"
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}  # of the largest
Pair = tuple[torch.Tensor, torch.Tensor]


class KeysValues:
    """Of one sequence: for each layer, keys and values [heads, places, width]."""

    def __init__(self) -> None:
        self._layers: dict[int, Pair] = {}
        self._begins: tuple[KeysValues, int] | None = None

    def begin_with(self, source: KeysValues, tokens: int) -> None:
        """The first so many are those of another sequence. They are copied with the next step."""
        self._begins = source, tokens

    def cut(self, tokens: int) -> None:
        """Only the first so many matter. What is behind is written over."""

    def settle(self) -> None:
        if self._begins is None:
            return
        source, tokens = self._begins
        source.settle()
        self._begins = None
        places = -(-tokens // _PIECE) * _PIECE
        for layer, pair in source._layers.items():
            self._layers[layer] = _grown(pair, tokens, places), _grown(pair, tokens, places, 1)

    def place_bytes(self) -> int:
        """Of a token, in all layers that have read some."""
        tensors = [tensor for pair in self._layers.values() for tensor in pair]
        return sum(each.shape[0] * each.shape[2] * each.element_size() for each in tensors)

    def extended(self, layer: int, keys: torch.Tensor, values: torch.Tensor, at: int) -> Pair:
        """All of a layer, with these [heads, tokens, width] behind the first `at`."""
        end = at + keys.shape[1]
        held = self._layers.get(layer)
        if held is None or held[0].shape[1] < end:
            places = -(-end // _PIECE) * _PIECE
            old = (keys[:, :0], values[:, :0]) if held is None else held
            held = self._layers[layer] = _grown(old, at, places), _grown(old, at, places, 1)
        held[0][:, at:end], held[1][:, at:end] = keys, values
        return held[0][:, :end], held[1][:, :end]


def _grown(pair: Pair, tokens: int, places: int, which: int = 0) -> torch.Tensor:
    old = pair[which]
    new = old.new_empty((old.shape[0], places, old.shape[2]))
    new[:, :tokens] = old[:, :tokens]
    return new


@dataclass(frozen=True, slots=True)
class CausalModel:
    """`module`: transformers' own, with this module's attention, on the device."""

    module: Any
    vocabulary: int
    device: torch.device

    def cache(self) -> KeysValues:
        return KeysValues()

    def step(self, parts: Sequence[Part]) -> torch.Tensor:
        """float32 [wanted parts, vocabulary], on the processors. Raises runtimes' faults."""
        device = self.device
        with Faults(), torch.inference_mode():
            for part in parts:
                part.cache.settle()
            ids = np.concatenate([part.ids for part in parts])
            places = [np.arange(part.at, part.at + len(part.ids)) for part in parts]
            ends = np.cumsum([len(part.ids) for part in parts])
            rows = [end - 1 for end, part in zip(ends, parts, strict=True) if part.wanted]
            found = self.module(
                input_ids=torch.from_numpy(ids)[None].to(device),
                position_ids=torch.from_numpy(np.concatenate(places))[None].to(device),
                use_cache=False,
                logits_to_keep=torch.tensor(rows or [0], device=device),
                parts=parts,
            )
            logits: torch.Tensor = found.logits[0, : len(rows)]
            return logits.float().cpu()

    def cache_bytes(self, places: int) -> int:
        cache = self.cache()
        self.step([Part(cache, np.zeros(1, np.int64), 0)])
        return places * cache.place_bytes()

    def release(self, weights: bool) -> None:
        """Caches have gone with their sequences; of a GPU, `weights` go to the host's memory."""
        if self.device.type == "cuda":
            if weights:
                self.module.to("cpu")
            torch.cuda.empty_cache()

    def restore(self) -> None:
        """Raises runtimes' faults."""
        with Faults():
            self.module.to(self.device)


def opened(folder: Path, kind: torch.dtype, device: str = "cpu") -> CausalModel:
    """The folder's model on the device, checked. Raises `LoadError`."""
    AttentionInterface.register(_NAME, _attention)
    try:
        module = AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=kind, local_files_only=True,
            trust_remote_code=False, use_safetensors=True,
        ).eval()  # fmt: skip
    except Exception as error:  # its parts raise what they like
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise LoadError(f"{folder}: transformers cannot load it: {words[0]}") from error
    try:
        module.to(device)
    except torch.OutOfMemoryError as error:
        raise LoadError(f"{device} has no memory for the model: {error}") from error
    vocabulary = int(module.get_output_embeddings().weight.shape[0])
    model = CausalModel(module, vocabulary, torch.device(device))
    _check(folder, model, kind)
    return model


def _check(folder: Path, model: CausalModel, kind: torch.dtype) -> None:
    """Leaves the module with this module's attention."""
    name = type(model.module).__name__
    drawn = engine.tried(model.vocabulary)
    with torch.inference_mode():
        ids = torch.from_numpy(drawn).to(model.module.device)
        own = model.module(ids, use_cache=False).logits[:, -1].float().cpu()
    model.module.set_attn_implementation(_NAME)
    engine.check(model, drawn, own, f"{folder}: its {name}", _TOLERANCE[kind])


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' interface: [1, heads, tokens, width] in, [1, tokens, heads, width] out."""
    parts: Sequence[Part] = more["parts"]
    unknown = [name for name in ("softcap", "s_aux") if more.get(name) is not None]
    if unknown:
        raise NotImplementedError(f"attention with {unknown[0]} is not supported")
    window = more.get("sliding_window")
    made = query.new_empty((query.shape[2], query.shape[1], value.shape[3]))
    start = 0
    for part in parts:
        end = start + len(part.ids)
        keys, values = part.cache.extended(
            module.layer_idx, key[0, :, start:end], value[0, :, start:end], part.at
        )
        asks = query[0, :, start:end]
        made[start:end] = _attended(asks, keys, values, scaling, window).transpose(0, 1)
        start = end
    return made[None], None


def _attended(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """The last tokens' look at all: [heads, tokens, width], `keys` of fewer heads maybe."""
    heads, tokens, width = query.shape
    grouped = heads != keys.shape[0]
    if tokens == 1:  # heads that share keys stand in place of tokens: nothing is masked
        if window is not None:
            keys, values = keys[:, -window:], values[:, -window:]
        asks = query.reshape(1, keys.shape[0], -1, width)
        found = functional.scaled_dot_product_attention(
            asks, keys[None], values[None], scale=scaling
        )
        return found.reshape(heads, 1, -1)
    known = keys.shape[1]
    mask = None
    if known > tokens or (window is not None and known > window):
        at = torch.arange(known - tokens, known, device=query.device)[:, None]
        other = torch.arange(known, device=query.device)[None]
        mask = other <= at
        if window is not None:
            mask &= other > at - window
    found = functional.scaled_dot_product_attention(
        query[None], keys[None], values[None], attn_mask=mask, is_causal=mask is None,
        scale=scaling, enable_gqa=grouped,
    )  # fmt: skip
    return found[0]
