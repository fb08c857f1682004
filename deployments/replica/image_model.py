"""The image input and the classes of a loaded model, for its description.

Joins the settings with what the model declares and what its folder holds: which tensor takes the
image, which one holds the classes, the labels, what makes scores of logits, and the temperature
that calibrates them. A model that does not fit its settings raises `LoadError` at the start, in the
words of the settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from deployments.contract.description import Classes, ImageInput
from deployments.settings.classify import ClassifySettings
from deployments.settings.image import ImageSettings, patches
from deployments.settings.lengths import LengthSettings
from deployments.settings.model import ModelSettings
from runtimes.errors import LoadError
from runtimes.types import Limits, RowShapes, TensorSpec

_MULTI_LABEL = "multi_label_classification"  # a `problem_type` of transformers
CLASSES_FILE = "classify.json"
_DATATYPES = ("FP32", "FP16", "FP64", "UINT8")


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    """`classify.json`: what a training script knows of its model's classes."""

    labels: list[str] | None = None
    output_name: str | None = None
    output: str | None = None
    activation: str | None = None
    temperature: float | None = None
    threshold: float | None = None


def row_shapes(image: ImageSettings | None) -> RowShapes | None:
    """The shape of a row for each of the settings' image sizes, by its length in patches."""
    if image is None:
        return None
    shapes = []
    for height, width in image.sizes:
        nchw = (image.channels, height, width)
        shape = nchw if image.layout == "NCHW" else (height, width, image.channels)
        shapes.append((patches(height, width), shape))
    return RowShapes(image.input, tuple(shapes))


def with_image_lengths(model: ModelSettings) -> ModelSettings:
    """The settings with lengths that follow from the image sizes; unchanged without images."""
    shapes = row_shapes(model.image)
    if shapes is None:
        return model
    edges = shapes.lengths
    return model.model_copy(update={"lengths": LengthSettings(max=edges[-1], buckets=edges)})


def image_input(image: ImageSettings | None, limits: Limits) -> ImageInput | None:
    """How images become rows. Raises `LoadError` if the model's tensor cannot hold what the
    settings make."""
    if image is None or limits.row_shapes is None:
        return None
    spec = next(each for each in limits.inputs if each.name == limits.row_shapes.input)
    if spec.datatype not in _DATATYPES:
        raise LoadError(
            f"the image input '{spec.name}' is {spec.datatype}; images can be "
            f"{', '.join(_DATATYPES)}"
        )
    plain = set(image.mean) == {0.0} and set(image.std) == {1.0} and image.rounded
    if spec.datatype == "UINT8" and not plain:
        raise LoadError(
            f"the image input '{spec.name}' takes whole levels (UINT8): leave image.mean, "
            "image.std and image.rounded out"
        )
    return ImageInput(
        input=spec.name,
        datatype=spec.datatype,
        sizes=image.sizes,
        resize=image.resize,
        antialias=image.antialias,
        rounded=image.rounded,
        shorter_side=image.shorter_side,
        mean=image.mean,
        std=image.std,
        colour=image.colour,
        layout=image.layout,
        max_pixels=image.max_pixels,
    )


def classes(settings: ClassifySettings, limits: Limits, source: Path | None) -> Classes:
    """How outputs become labels. The settings go before the model's folder, that before defaults.
    Raises `LoadError`."""
    stored, declared = _stored(source), _hugging_face(source)
    spec = _output(settings.output_name or stored.output_name, limits)
    labels = settings.labels or stored.labels or declared.labels
    width = spec.shape[-1]
    if labels is None:
        if width < 1:
            raise LoadError("classify.labels is missing, and the model does not say how many")
        labels = [str(number) for number in range(width)]
    if width not in (-1, len(labels)):
        raise LoadError(f"there are {len(labels)} labels for an output of {width} classes")
    temperature = _first(settings.temperature, stored.temperature, 1.0)
    threshold = _first(settings.threshold, stored.threshold, 0.0)
    activation = settings.activation or stored.activation
    _check_activation(activation, len(labels))
    activation = activation or declared.activation(len(labels))
    if activation == "identity" and (temperature, threshold) != (1.0, 0.0):
        raise LoadError(
            "classify.temperature and classify.threshold are for scores between 0 and 1; this "
            "model's are as it gives them (classify.activation: identity)"
        )
    return Classes(
        output=spec.name,
        labels=tuple(labels),
        top_k=settings.top_k,
        temperature=temperature,
        threshold=threshold,
        probabilities=_first(settings.output, stored.output, "logits") == "probabilities",
        activation=activation,
    )


def _check_activation(activation: str | None, classes: int) -> None:
    if activation == "softmax" and classes == 1:
        raise LoadError(
            "classify.activation is softmax, and the model has one class: every score would be 1; "
            "must be sigmoid, or identity for a score as the model gives it"
        )


def classes_file(source: Path | None) -> bytes:
    """The bytes of the model's `classify.json`; empty if there is none."""
    file = _beside(source, CLASSES_FILE)
    return file.read_bytes() if file is not None else b""


def beside_the_artifact(source: Path | None) -> bytes:
    """What decides labels and scores and is no part of the artifact: `classify.json`, and of a
    single file the `config.json` beside it."""
    config = _beside(source, "config.json") if source is not None and source.is_file() else None
    return classes_file(source) + (config.read_bytes() if config is not None else b"")


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _stored(source: Path | None) -> _Stored:
    raw = classes_file(source)
    if not raw:
        return _Stored()
    try:
        stored = msgspec.json.decode(raw, type=_Stored)
        # Checked by the settings' own rules, because their messages say what would be right.
        given = msgspec.structs.asdict(stored)
        ClassifySettings.model_validate({k: v for k, v in given.items() if v is not None})
    except ValueError as error:  # the base of both libraries' errors
        raise LoadError(f"{_beside(source, CLASSES_FILE)}: {error}") from error
    return stored


def _output(name: str | None, limits: Limits) -> TensorSpec:
    flat = [spec for spec in limits.outputs if len(spec.shape) == 2]
    if name is not None:
        flat = [spec for spec in flat if spec.name == name]
    if len(flat) != 1:
        known = ", ".join(f"'{spec.name}' {list(spec.shape)}" for spec in limits.outputs)
        wanted = f"one '{name}'" if name else "one alone, or classify.output_name must name it"
        raise LoadError(
            f"task classify needs an output of shape [batch, classes], {wanted}; the model has "
            f"{known}"
        )
    return flat[0]


@dataclass(frozen=True, slots=True)
class _HuggingFace:
    """What `config.json` says of the classes. `module`: the class name of the activation with
    which sentence-transformers trained a cross-encoder."""

    file: Path | None = None
    labels: list[str] | None = None
    problem: str | None = None
    module: str | None = None

    def activation(self, classes: int) -> str:
        """As sentence-transformers' CrossEncoder and the pipeline of transformers decide it."""
        if self.module is not None:
            known = {"Sigmoid": "sigmoid", "Identity": "identity"}
            if classes > 1:
                known["Softmax"] = "softmax"
            if self.module not in known:
                raise LoadError(
                    f"{self.file} names the activation {self.module}, which is not one of "
                    f"{', '.join(known)}; set classify.activation"
                )
            return known[self.module]
        if self.problem == "regression":
            return "identity"
        return "sigmoid" if classes == 1 or self.problem == _MULTI_LABEL else "softmax"


def _hugging_face(source: Path | None) -> _HuggingFace:
    file = _beside(source, "config.json")
    if file is None:
        return _HuggingFace()
    try:
        config = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        named = config.get("id2label")
        labels = [str(named[str(number)]) for number in range(len(named))] if named else None
    except (ValueError, KeyError, TypeError) as error:
        raise LoadError(f"{file}: id2label must name 0, 1, 2 …: {error!r}") from error
    trained = config.get("sentence_transformers")
    module = trained.get("activation_fn") if isinstance(trained, dict) else None
    module = module or config.get("sbert_ce_default_activation_function")
    return _HuggingFace(
        file, labels, config.get("problem_type"), str(module).rpartition(".")[2] if module else None
    )


def _beside(source: Path | None, name: str) -> Path | None:
    if source is None:
        return None
    file = (source if source.is_dir() else source.parent) / name
    return file if file.is_file() else None
