"""`classify`: how a classifier's output becomes labels with scores, and when it abstains.

Scores are softmax(logits / temperature). What is left unset is what `classify.json` in the model's
folder (or beside its file) says, which is where a training script stores the temperature it has
fitted; without one, the default named here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from yaml_document.section import Section, listed, wrong

MOST_LABELS = 100_000


def _labels(value: Any) -> Any:
    labels = listed(value)
    if not isinstance(labels, tuple) or not 1 <= len(labels) <= MOST_LABELS:
        raise wrong(f"must be a list of 1 to {MOST_LABELS} texts")
    for position, label in enumerate(labels):
        if not isinstance(label, str) or not label:
            raise wrong(f"is {label!r}; must be text, in quotes where YAML reads a number or a "
                        "word of its own", position)  # fmt: skip
    return labels


class ClassifySettings(Section):
    labels: Annotated[tuple[str, ...], BeforeValidator(_labels)] | None = Field(
        default=None,
        examples=["[cat, dog]"],
        description="Names of the classes, in the order of the model's output; unset, those of "
        "the model's folder (`classify.json`, or `id2label` of `config.json`), else their numbers.",
    )
    output_name: str | None = Field(
        default=None,
        description="The model's output that holds the classes; unset, its only one of shape "
        "[batch, classes].",
    )
    output: Literal["logits", "probabilities"] | None = Field(
        default=None, description="What that output holds; unset, logits."
    )
    top_k: int = Field(
        default=5, ge=1, le=MOST_LABELS, description="Labels in an answer that asks for no number."
    )
    temperature: float | None = Field(
        default=None,
        gt=0,
        le=1000,
        description="What logits are divided by before their softmax, so that scores are as often "
        "right as they say; unset, 1.",
    )
    threshold: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="An answer abstains where its best score is below this; unset, 0: never.",
    )
