"""transformers' own network of any Hugging Face folder: of texts alone, or of images or sounds too.

Which of a folder's encoders it is, `runtimes.towers` says. What the network computes in a narrower
type goes in and comes out as float32. As `runtimes.torch.encoder`, this module runs no code of the
folder's, and imports torch and transformers.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from runtimes import folder as model_folder
from runtimes import towers
from runtimes.errors import LoadError, library
from runtimes.folder import Pooling
from runtimes.graph.bert import ATTENTION_MASK, HIDDEN, INPUT_IDS, LOGITS
from runtimes.graph.pooling import SMALLEST_NORM
from runtimes.torch import encoder
from runtimes.torch.encoder import Encoder
from runtimes.types import DTYPES, TensorSpec

_NETWORKS = {
    ("clip", "texts"): "CLIPTextModelWithProjection",
    ("clip", "images"): "CLIPVisionModelWithProjection",
    ("siglip", "texts"): "SiglipTextModel",
    ("siglip", "images"): "SiglipVisionModel",
    ("vit", "images"): "ViTModel",
    ("whisper", "sounds"): "WhisperModel",
}
_OUTPUTS = {"texts": "text_embeds", "images": "image_embeds", "sounds": "audio_embeds"}


class Tower(nn.Module):
    """An encoder of a folder that reads more than texts. Inputs, in the order of `inputs`: of texts
    int64 [rows, length], of others float32 [rows, ...]; outputs are float32, by name.

    Task `classify`: logits [rows, classes]. `embed`: the embedding [rows, width]. `tensors`: hidden
    states [rows, length or patches, width], and the embedding where the network makes one.
    """

    def __init__(
        self, network: Any, tower: towers.Tower, task: str, pooling: Pooling | None, fill: int
    ) -> None:
        super().__init__()
        self.network, self.task, self.pooling = network, task, pooling
        self._tower, self._fill = tower, fill
        kinds = {"texts": (INPUT_IDS, ATTENTION_MASK), "images": (towers.PIXELS,)}
        self.inputs: tuple[str, ...] = kinds.get(tower.reads, (towers.FEATURES,))

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        if self._tower.reads == "texts":
            return tuple(TensorSpec(name, "INT64", (-1, -1)) for name in self.inputs)
        return (TensorSpec(self.inputs[0], "FP32", (-1, *self._tower.row)),)

    def forward(self, *tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self._found(tensors)
        if self.task == "classify":
            return {LOGITS: found.logits.float()}
        hidden = found.last_hidden_state.float()
        made = {} if self.pooling is None else self._embedding(found, hidden, self.pooling)
        if self.task == "embed":
            return made
        if self._tower.reads == "texts":
            hidden = hidden[:, : tensors[0].shape[1]]
        return {HIDDEN: hidden, **made}

    def _found(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        if self._tower.reads != "texts":
            return self.network(tensors[0].to(self.network.dtype), return_dict=True)
        ids, mask = tensors
        if self._tower.family == "siglip":  # trained on texts filled up, and without a mask
            whole = self._tower.positions or 0
            fill = torch.full((ids.shape[0], whole), self._fill, device=ids.device)
            ids = torch.where(mask == 0, self._fill, ids)
            return self.network(torch.cat([ids, fill], 1)[:, :whole], return_dict=True)
        return self.network(input_ids=ids, attention_mask=mask, return_dict=True)

    def _embedding(
        self, found: Any, hidden: torch.Tensor, pooling: Pooling
    ) -> dict[str, torch.Tensor]:
        name = _OUTPUTS[self._tower.reads]
        if pooling.modes:
            every = torch.ones(hidden.shape[:2], dtype=torch.int64, device=hidden.device)
            vector = encoder.pooled(hidden, every, pooling.modes[0])
        else:
            projected = getattr(found, name, None)
            vector = (found.pooler_output if projected is None else projected).float()
        if pooling.normalize:
            vector = functional.normalize(vector, dim=-1, eps=SMALLEST_NORM)
        return {name: vector}

    def to_precision(self, kind: torch.dtype) -> Tower:
        """The network's parameters in this type."""
        self.network.to(kind)
        return self

    @property
    def id_bounds(self) -> dict[str, int]:
        """Entries of each input's table."""
        if self._tower.reads != "texts":
            return {}
        return {INPUT_IDS: int(self.network.get_input_embeddings().num_embeddings)}


def opened(
    path: Path, task: str, pooling: Pooling | None, *, images: bool = False
) -> Encoder | Tower:
    """The folder's module in float32, ready to run. `images`: that reads images, where it has one
    of them and one of texts. Raises `LoadError`."""
    model_folder.check(path, task, () if images else None)
    tower = towers.tower_of(model_folder.configuration(path), images)
    if tower is None:
        return encoder.opened(path, task, pooling)
    model_folder.check_pooling(path, task, pooling)
    transformers = library("transformers", f"{path} needs transformers", "headrace[export]")
    kind = _NETWORKS[tower.family, tower.reads]
    if task == "classify":
        kind = "AutoModelForImageClassification"
    spare = ("pooler",) if kind == "ViTModel" else ()  # not every ViT was trained with it
    with _without_report():
        own = _projected(transformers, path, kind)
        network, lacking = encoder.loaded(getattr(transformers, kind), path, spare, **own)
    if tower.reads == "sounds":
        network = network.get_encoder()
    lacking = lacking or getattr(network.config, "vision_use_head", True) is False  # SigLIP's
    if lacking and pooling and not pooling.modes:
        if task == "embed":
            instead = "set the option pooling to cls or mean" if spare else "its task is tensors"
            raise LoadError(f"{path} holds no pooler, which would make its embedding: {instead}")
        pooling = None
    fill = model_folder.padding(path) if tower.family == "siglip" else 0
    return Tower(network, tower, task, pooling, fill).eval().requires_grad_(False)


def _projected(transformers: Any, path: Path, kind: str) -> dict[str, Any]:
    """The configuration of one of CLIP's encoders with the width of the embedding that both share,
    which transformers would take from the encoder's own part. Raises `LoadError`."""
    if not kind.startswith("CLIP"):
        return {}
    try:
        whole = transformers.CLIPConfig.from_pretrained(str(path), local_files_only=True)
    except Exception as error:  # of a value of a wrong kind, in many types
        raise LoadError(f"{path / 'config.json'}: {type(error).__name__}: {error}") from error
    own = whole.vision_config if "Vision" in kind else whole.text_config
    own.projection_dim = whole.projection_dim
    return {"config": own}


@contextlib.contextmanager
def _without_report() -> Iterator[None]:
    """transformers would list the other encoder's weights, which are not read."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def examples(module: Encoder | Tower, rows: int, length: int) -> tuple[torch.Tensor, ...]:
    """Ones of every input, in order."""
    return tuple(
        torch.from_numpy(np.ones((rows, *shape), DTYPES[spec.datatype]))
        for spec in module.specs
        for shape in [[length if size == -1 else size for size in spec.shape[1:]]]
    )
