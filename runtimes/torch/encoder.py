"""A Hugging Face folder as transformers' own network, with the folder's pooling on top of it.

The torch runtime runs the module as it is; `runtimes.torch.export` writes it as an ONNX file for
the other backends. So all backends compute one network, and pooling of every kind is written once.
Pooling is computed in float32 at any precision, over real tokens alone.

Only classes of transformers itself are made (`trust_remote_code` is off), only safetensors are
read, and nothing is fetched. This module imports torch and transformers.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.nn import functional

from runtimes import folder as model_folder
from runtimes.errors import LoadError, library
from runtimes.folder import Dense, Pooling, Splade
from runtimes.graph.bert import ATTENTION_MASK, EMBEDDING, HIDDEN, INPUT_IDS, LOGITS, TOKEN_TYPES
from runtimes.graph.pooling import FEWEST_TOKENS, SMALLEST_NORM, SPARSE_WIDTH
from runtimes.types import INDICES, PROMPT_MASK, TOKEN_VECTORS, VALUES, TensorSpec

_ATTENTIONS = ("sdpa", "eager")  # some families have the second alone
_FUNCTIONS = {
    None: lambda x: x,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "sigmoid": torch.sigmoid,
}


class Encoder(nn.Module):
    """Inputs are int64 [rows, length], in the order of `inputs`; outputs are float32, by name.

    Task `classify`: logits [rows, classes]. `rerank`, of a language model: [rows, 1], by how much
    yes is likelier than no as the next word. `embed`: the embedding [rows, width], or one of each
    token [rows, length, width], or of a sparse one the largest weights and, as int64, the entries
    of the vocabulary that they are for, both [rows, `SPARSE_WIDTH`]. `tensors`: hidden states
    [rows, length, width], and the embedding where the folder declares a pooling.
    """

    def __init__(self, network: Any, task: str, pooling: Pooling | None) -> None:
        super().__init__()
        self.network, self.task, self.pooling = network, task, pooling
        self.inputs = _inputs(network)
        if pooling and pooling.modes and not pooling.prompts and task != "classify":
            self.inputs = (*self.inputs, PROMPT_MASK)
        if task == "rerank":
            self.judge = nn.Buffer(torch.empty(network.config.hidden_size))  # `opened` fills it
        self.dense = nn.ModuleList(map(_Layer, pooling.dense if pooling else ()))

    def forward(self, *tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        named = dict(zip(self.inputs, tensors, strict=True))
        of_prompts = named.pop(PROMPT_MASK, None)
        tokens = self.pooling.tokens if self.pooling else None
        if tokens and tokens.unattended is not None:
            mask = attended(named[INPUT_IDS], named[ATTENTION_MASK], tokens.unattended)
            named[ATTENTION_MASK] = mask
        if self.task == "rerank":
            hidden = self.network.model(**named, return_dict=True).last_hidden_state.float()
            last = pooled(hidden, named[ATTENTION_MASK], "lasttoken")
            return {LOGITS: (last @ self.judge).unsqueeze(1)}
        found = self.network(**named, return_dict=True)
        if self.task == "classify":
            return {LOGITS: found.logits.float()}
        if self.pooling and self.pooling.splade:
            return sparse(found.logits.float(), named[ATTENTION_MASK], self.pooling.splade)
        hidden = found.last_hidden_state.float()
        if self.pooling is None:
            return {HIDDEN: hidden}
        if tokens:
            return {TOKEN_VECTORS: self._projected(hidden)}
        mask = named[ATTENTION_MASK]
        if of_prompts is not None:
            mask = mask * (of_prompts == 0).to(mask.dtype)
        vectors = [pooled(hidden, mask, mode) for mode in self.pooling.modes]
        embedding = vectors[0] if len(vectors) == 1 else torch.cat(vectors, 1)
        found = {EMBEDDING: self._projected(embedding)}
        return found if self.task == "embed" else {HIDDEN: hidden, **found}

    def _projected(self, vectors: torch.Tensor) -> torch.Tensor:
        """Through the layers that follow pooling; their last axis is the vector's."""
        pooling = self.pooling
        assert pooling is not None
        for layer in self.dense:
            vectors = layer(vectors)
        if pooling.normalize:
            vectors = functional.normalize(vectors, dim=-1, eps=SMALLEST_NORM)
        return vectors

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name, "INT64", (-1, -1)) for name in self.inputs)

    def to_precision(self, kind: torch.dtype) -> Encoder:
        """The network's parameters in this type; the layers of pooling stay in float32."""
        self.network.to(kind)
        return self

    @property
    def id_bounds(self) -> dict[str, int]:
        """Entries of each input's table."""
        config = self.network.config
        bounds = {INPUT_IDS: int(self.network.get_input_embeddings().num_embeddings)}
        if TOKEN_TYPES in self.inputs:
            bounds[TOKEN_TYPES] = int(config.type_vocab_size)
        return bounds

    @property
    def width(self) -> int:
        """Numbers of an embedding, or of a token's hidden state where there is none."""
        if self.pooling and self.pooling.dense:
            return self.pooling.dense[-1].outputs
        return self.hidden_width * max(1, len(self.pooling.modes) if self.pooling else 1)

    @property
    def hidden_width(self) -> int:
        return int(self.network.config.hidden_size)


def attended(ids: torch.Tensor, mask: torch.Tensor, fill: int) -> torch.Tensor:
    """The mask without the tokens `fill` that a row ends with; it always has its first token."""
    places = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    last = ((ids != fill).to(mask.dtype) * mask * places).amax(1, keepdim=True)
    return mask * (places <= last.clamp(min=1)).to(mask.dtype)


def pooled(hidden: torch.Tensor, mask: torch.Tensor, mode: str) -> torch.Tensor:
    """[rows, width] of [rows, length, width] and the mask [rows, length] of tokens that count, as
    the mode (one of `runtimes.folder.MODES`) says. Source: sentence-transformers' Pooling."""
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    if mode == "cls":
        first = mask.argmax(1, keepdim=True).unsqueeze(-1)
        return hidden.gather(1, first.expand(-1, -1, hidden.shape[2])).squeeze(1)
    if mode == "max":
        return hidden.masked_fill(weights == 0, torch.finfo(hidden.dtype).min).amax(1)
    places = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    if mode == "lasttoken":
        last = (mask * places).argmax(1, keepdim=True).unsqueeze(-1)
        return hidden.gather(1, last.expand(-1, -1, hidden.shape[2])).squeeze(1)
    if mode == "weightedmean":
        weights = weights * places.to(hidden.dtype).unsqueeze(-1)
    total, count = (hidden * weights).sum(1), weights.sum(1).clamp(min=FEWEST_TOKENS)
    return total / (count.sqrt() if mode == "mean_sqrt_len_tokens" else count)


def sparse(logits: torch.Tensor, mask: torch.Tensor, splade: Splade) -> dict[str, torch.Tensor]:
    """Of logits [rows, length, vocabulary], the largest weights by their entry, ascending; -1 with
    a weight of 0 where there are fewer. Source: sentence-transformers' module SpladePooling."""
    weights = logits * mask.unsqueeze(-1).to(logits.dtype)
    if not splade.sums:  # first, for fewer numbers: what follows grows with its argument
        weights = weights.amax(1)
    weights = weights.relu()
    for _ in range(2 if splade.twice else 1):
        weights = torch.log1p(weights)
    if splade.sums:
        weights = weights.sum(1)
    values, indices = weights.topk(min(SPARSE_WIDTH, weights.shape[1]), dim=1)
    indices, order = indices.masked_fill(values == 0, -1).sort(dim=1)
    return {INDICES: indices, VALUES: values.gather(1, order)}


def opened(path: Path, task: str, pooling: Pooling | None) -> Encoder:
    """The folder's module in float32, ready to run. Raises `LoadError`."""
    model_folder.check(path, task)
    model_folder.check_pooling(path, task, pooling)
    transformers = library("transformers", f"{path} needs transformers", "headrace[export]")
    kind = "AutoModelForSequenceClassification" if task == "classify" else "AutoModel"
    if pooling and pooling.splade:
        kind = "AutoModelForMaskedLM"
    if task == "rerank":
        kind = "AutoModelForCausalLM"
    spare = ("pooler",) if kind == "AutoModel" else ()  # which nobody asks
    network, _ = loaded(getattr(transformers, kind), path, spare)
    encoder = Encoder(network, task, pooling)
    if task == "rerank":
        yes, no = (encoder.network.lm_head.weight[word] for word in model_folder.judged(path))
        encoder.judge = nn.Buffer((yes - no).detach().clone())
    return encoder.eval().requires_grad_(False)


def loaded(auto: Any, path: Path, spare: Sequence[str] = (), **configured: Any) -> tuple[Any, bool]:
    """The folder's network of a class of transformers. `spare`: parts that the folder need not
    have; whether it lacks any of them. `configured`: its `config`, where it is not as the folder's
    stands. Raises `LoadError`."""
    for attention in _ATTENTIONS:
        try:
            network, report = auto.from_pretrained(
                str(path),
                dtype=torch.float32,
                attn_implementation=attention,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                **configured,
            )
        except ValueError as error:
            if attention != _ATTENTIONS[-1] and "attention implementation" in str(error):
                continue
            raise LoadError(f"{path} cannot be loaded: {error}") from error
        except Exception as error:  # transformers' own, safetensors', a KeyError of a config
            raise LoadError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
        lacking = list(report["missing_keys"])
        missing = sorted(name for name in lacking if name.split(".")[0] not in spare)
        if missing:
            named = ", ".join(missing[:5])
            raise LoadError(
                f"{path} lacks {len(missing)} of the network's weights, such as {named}: they "
                "would be random"
            )
        network.config.use_cache = False
        return network, bool(lacking)
    raise AssertionError("the last attention has either answered or raised")


def _inputs(network: Any) -> tuple[str, ...]:
    takes = inspect.signature(network.forward).parameters
    types = int(getattr(network.config, "type_vocab_size", 0) or 0)
    # BERT's callers send them, be there one type alone.
    typed = TOKEN_TYPES in takes and (types > 1 or network.config.model_type == "bert")
    return (INPUT_IDS, ATTENTION_MASK, *((TOKEN_TYPES,) if typed else ()))


class _Layer(nn.Module):
    """A Dense module."""

    def __init__(self, each: Dense) -> None:
        super().__init__()
        self.linear = nn.Linear(each.inputs, each.outputs, each.bias)
        self.function, self.adds = _FUNCTIONS[each.activation], each.residual
        if each.residual and each.inputs != each.outputs:
            self.residual = nn.Linear(each.inputs, each.outputs, bias=False)
        file = each.folder / "model.safetensors"
        try:
            with safe_open(str(file), "pt") as stored:
                known = list(stored.keys())
                names = [name for name in known if name.startswith(("linear.", "residual."))]
                self.load_state_dict({name: stored.get_tensor(name).float() for name in names})
        except (RuntimeError, OSError, SafetensorError) as error:
            raise LoadError(f"{file}: {error}") from error

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.function(self.linear(vectors))
        if not self.adds:
            return made
        kept = self.residual(vectors) if hasattr(self, "residual") else vectors
        return made + kept
