"""`lengths`: a row's length, its bound, and the lengths that are batched together.

Lengths are tokens, or whatever the model's length axis counts. Edges that are not listed start as
powers of two and then follow the lengths that arrive; a list is their fixed value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from yaml_document.section import Section, listed, wrong

SHORTEST_BUCKET = 16
LONGEST = 1_048_576
AUTO_BUCKETS = 8
MOST_BUCKETS = 64


def _buckets(value: Any) -> Any:
    """`auto`, a whole number or a list of them; one sentence for whatever else stands there."""
    if value == "auto":
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        if 1 <= value <= MOST_BUCKETS:
            return value
        raise wrong(f"is {value}; must be auto, a number of buckets from 1 to {MOST_BUCKETS}, "
                    "or a list of lengths such as [32, 128, 512]")  # fmt: skip
    edges = listed(value)
    if not isinstance(edges, tuple):
        raise wrong("must be auto, a number of buckets or a list of lengths such as [32, 128, 512]")
    for position, edge in enumerate(edges):
        if isinstance(edge, bool) or not isinstance(edge, int) or not 1 <= edge <= LONGEST:
            raise wrong(f"is {edge!r}; must be a whole number of at least 1", position)
    return edges


class AdaptSettings(Section):
    gone: ClassVar[Mapping[str, str]] = {
        "minimise": "policies.edges names what edges are chosen by (seconds, padding, quantiles)"
    }
    every_s: float = Field(
        default=60, gt=0, le=86_400, description="New edges are looked for this often."
    )
    half_life_s: float = Field(
        default=600,
        gt=0,
        le=604_800,
        description="A length that arrived this long ago counts half as much as one of now.",
    )
    min_gain: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="New edges come into force only where they save at least this share.",
    )


class LengthSettings(Section):
    max: int = Field(
        default=512,
        ge=1,
        le=LONGEST,
        description="Longest row accepted, in tokens; a model that takes less does not start.",
    )
    buckets: Annotated[Literal["auto"] | int | tuple[int, ...], BeforeValidator(_buckets)] = Field(
        default="auto",
        description="Length intervals that are batched together: at most so many (`auto`: "
        f"{AUTO_BUCKETS}), whose edges start as powers of two from {SHORTEST_BUCKET} and follow "
        "the lengths that arrive; or a list of ascending upper edges, in tokens, the last one "
        "equal to `max`, which stay as they are.",
    )
    adapt: AdaptSettings = Field(
        default_factory=AdaptSettings,
        description="How edges that are not listed follow the lengths that arrive.",
    )
    switch_ms: float = Field(
        default=0,
        ge=0,
        le=3_600_000,
        description="What running another length interval than the last one costs, where the "
        "backend is compiled for certain lengths, which then are the intervals.",
    )
    input: str | None = Field(
        default=None,
        description="Input whose axis is a row's length; unset, what the model declares.",
    )
    axis: int | None = Field(
        default=None,
        ge=1,
        le=16,
        description="That axis, the batch being axis 0; unset, what the model declares.",
    )
    mask: str | None = Field(
        default=None,
        description="Input that is 1 for real tokens and 0 for padding; unset, what the model "
        "declares.",
    )
    truncate: bool = Field(
        default=False, description="Cut longer rows to `max` instead of refusing the request."
    )

    @property
    def most_buckets(self) -> int | None:
        """How many buckets adaptive edges may make; None where the edges are listed."""
        if isinstance(self.buckets, tuple):
            return None
        return AUTO_BUCKETS if self.buckets == "auto" else self.buckets

    @model_validator(mode="after")
    def _edges_ascend_to_max(self) -> LengthSettings:
        if not isinstance(self.buckets, tuple):
            return self
        edges = self.buckets
        if not edges:
            raise wrong("is empty; must be auto or end with max", "buckets")
        for position in range(1, len(edges)):
            if edges[position] <= edges[position - 1]:
                raise wrong(
                    f"is {edges[position]} after {edges[position - 1]}; edges must ascend",
                    "buckets",
                    position,
                )
        if edges[-1] != self.max:
            raise wrong(
                f"ends with {edges[-1]}; the last edge must equal max ({self.max})", "buckets"
            )
        return self


def bucket_edges(lengths: LengthSettings) -> tuple[int, ...]:
    """Ascending inclusive upper edges, in tokens, the last one `lengths.max`: those listed, or
    those to start from."""
    if isinstance(lengths.buckets, tuple):
        return lengths.buckets
    edges, most = [*_powers_below(lengths.max), lengths.max], lengths.most_buckets
    assert most is not None
    if len(edges) <= most:
        return tuple(edges)
    # Evenly over the powers, the longest always among them.
    return tuple(edges[len(edges) * (n + 1) // most - 1] for n in range(most))


def _powers_below(limit: int) -> list[int]:
    edges = []
    edge = SHORTEST_BUCKET
    while edge < limit:
        edges.append(edge)
        edge *= 2
    return edges
