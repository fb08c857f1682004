"""`accept`: the reference that a model must agree with before it may serve, how closely, and what
the model may cost.

A section that names neither a reference nor a bound of agreement compares no answers. A bound that
is left out is not checked; if a reference is named and no bound at all, absolute and relative
errors may be at most 1e-3. The check and its measures are in `deployments/replica/verify/`;
`headrace verify` runs it. Costs are compared in `deployments/replica/cost_admission.py`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from yaml_document.section import Section

MIN_SAMPLES = 200
MAX_COST_RATIO = 5.0
PATHS = ("artifact", "samples_file")
BOUNDS = ("max_abs", "mean_abs", "max_rel", "mean_rel", "cosine", "top1")
NonEmptyText = Annotated[str, StringConstraints(min_length=1)]


class AcceptSettings(Section):
    against: NonEmptyText | None = Field(
        default=None,
        examples=["torch or openvino:fp32"],
        description="Runtime, and after a colon its precision, that the model is compared with. "
        "Unset: in fp32, the most trusted runtime other than the model's own.",
    )
    artifact: NonEmptyText | None = Field(
        default=None,
        examples=["models/minilm.onnx"],
        description="Artifact that the reference runs, relative to this file, such as the graph "
        "from which a quantised one was made. Unset: the model's own source.",
    )
    samples: int = Field(
        default=MIN_SAMPLES,
        ge=MIN_SAMPLES,
        le=1_000_000,
        description="Least number of rows that are compared.",
    )
    samples_file: NonEmptyText | None = Field(
        default=None,
        examples=["samples.jsonl"],
        description="File with these rows: .jsonl, .npz, or a folder that `headrace record` wrote, "
        "relative to this file. Unset: rows are drawn at random over all lengths.",
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
        description="Largest relative error of any value: relative to the reference's value, or to "
        "its row's root mean square if that is larger.",
    )
    mean_rel: float | None = Field(
        default=None, ge=0, description="Largest mean relative error in any bucket."
    )
    cosine: float | None = Field(
        default=None,
        ge=-1,
        le=1,
        description="Least cosine similarity between a row's output and the reference's.",
    )
    top1: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Least share of rows, in any bucket, whose best class is that of the "
        "reference.",
    )

    max_cost_ratio: float = Field(
        default=MAX_COST_RATIO,
        ge=0,
        le=1000,
        description="A replica of a changed model does not start, and the live version goes on, if "
        "the replica's batches take more than this times as long as the live version's, compared "
        "by length, or if a single row misses the deadline and the live version's does not. 0: "
        "costs are not compared. Not for a canary, which has `rollout.max_latency_ratio`.",
    )

    @property
    def required(self) -> bool:
        """Whether answers are compared; costs are compared by themselves."""
        named = (self.against, self.artifact, self.samples_file)
        bounds = (getattr(self, name) for name in BOUNDS)
        return any(each is not None for each in (*named, *bounds))
