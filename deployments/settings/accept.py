"""`accept`: what a model must agree with before it may serve, and how closely.

A section that asks for nothing is no gate. Bounds that are left out are not asked for; with a
reference named and no bound at all, absolute and relative error may be 1e-3. The check itself, and
what each measure is, are in `deployments/tools/verify`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from yaml_document.section import Section

LEAST_SAMPLES = 200
PATHS = ("artifact", "samples_file")
BOUNDS = ("max_abs", "mean_abs", "max_rel", "mean_rel", "cosine", "top1")
Text = Annotated[str, StringConstraints(min_length=1)]


class AcceptSettings(Section):
    against: Text | None = Field(
        default=None,
        examples=["torch or openvino:fp32"],
        description="Runtime, and after a colon its precision, that the model is compared with; "
        "unset, the most trusted one in fp32 that is not the model's own.",
    )
    artifact: Text | None = Field(
        default=None,
        examples=["models/minilm.onnx"],
        description="What the reference runs, relative to this file, such as the graph that a "
        "quantised one was made from; unset, the model's own source.",
    )
    samples: int = Field(
        default=LEAST_SAMPLES,
        ge=LEAST_SAMPLES,
        le=1_000_000,
        description="Rows that are compared at least.",
    )
    samples_file: Text | None = Field(
        default=None,
        examples=["samples.jsonl"],
        description="Those rows: .jsonl, .npz or a folder that `headrace record` wrote, relative "
        "to this file; unset, they are drawn over all lengths.",
    )
    max_abs: float | None = Field(
        default=None, ge=0, description="Largest absolute error of any value, in any bucket."
    )
    mean_abs: float | None = Field(
        default=None, ge=0, description="Largest mean absolute error in any bucket."
    )
    max_rel: float | None = Field(
        default=None,
        ge=0,
        description="Largest relative error of any value: to itself or, where that is larger, to "
        "its row's root mean square.",
    )
    mean_rel: float | None = Field(
        default=None, ge=0, description="Largest mean relative error in any bucket."
    )
    cosine: float | None = Field(
        default=None, ge=-1, le=1, description="Least cosine between a row and the reference's."
    )
    top1: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Least share of rows, in any bucket, whose best class is the reference's.",
    )

    @property
    def required(self) -> bool:
        """Whether there is anything to agree with."""
        named = (self.against, self.artifact, self.samples_file)
        bounds = (getattr(self, name) for name in BOUNDS)
        return any(each is not None for each in (*named, *bounds))
