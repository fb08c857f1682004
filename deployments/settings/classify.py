"""`classify`: how a classifier's output becomes labels with scores, and when it abstains.

Scores are activation(logits / temperature). A field that is unset is taken from `classify.json` in
the model's folder (or beside its file), where a training script stores the temperature that it
fitted; without such a file, the default named here applies.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from yaml_document.section import Section, listed, wrong

MAX_LABELS = 100_000


def _labels(value: Any) -> Any:
    labels = listed(value)
    if not isinstance(labels, tuple) or not 1 <= len(labels) <= MAX_LABELS:
        raise wrong(f"must be a list of 1 to {MAX_LABELS} texts")
    for position, label in enumerate(labels):
        if not isinstance(label, str) or not label:
            raise wrong(f"is {label!r}; must be text, in quotes if YAML would not read it as text",
                        position)  # fmt: skip
    return labels


class ClassifySettings(Section):
    labels: Annotated[tuple[str, ...], BeforeValidator(_labels)] | None = Field(
        default=None,
        examples=["[cat, dog]"],
        description="Names of the classes, in the order of the model's output. Unset: the names in "
        "the model's folder (`classify.json`, or `id2label` of `config.json`), else numbers.",
    )
    output_name: str | None = Field(
        default=None,
        description="Name of the model's output that holds the classes. Unset: the only output of "
        "shape [batch, classes].",
    )
    output: Literal["logits", "probabilities"] | None = Field(
        default=None, description="What that output holds. Unset: logits."
    )
    activation: Literal["softmax", "sigmoid", "identity"] | None = Field(
        default=None,
        description="What makes scores of logits: softmax where classes exclude each other, "
        "sigmoid where each is true or not by itself, identity for scores as the model gives them. "
        "Unset: as `config.json` says (`sentence_transformers`, `problem_type`), else sigmoid for "
        "one class and softmax for more.",
    )
    top_k: int = Field(
        default=5,
        ge=1,
        le=MAX_LABELS,
        description="Number of labels in an answer, unless the request asks for another.",
    )
    temperature: float | None = Field(
        default=None,
        gt=0,
        le=1000,
        description="Temperature: logits are divided by it before the activation, so that scores "
        "are calibrated probabilities. Unset: 1.",
    )
    threshold: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="An answer abstains if its best score is below this. Unset: never.",
    )
