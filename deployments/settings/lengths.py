"""`lengths`: what a row's length is, how long it may be, and which lengths are batched together.

Lengths are counted in tokens, or in what the model's length axis counts. Bucket edges that are not
listed start as powers of two and then adapt to the lengths that arrive; listed edges are fixed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from deployments.settings.gone import GONE
from yaml_document.section import Section, listed, wrong

SHORTEST_BUCKET = 16
LONGEST = 1_048_576
AUTO_BUCKETS = 8
MAX_BUCKETS = 64


def _buckets(value: Any) -> Any:
    """`auto`, a number of buckets, or a list of edges. One error for anything else, in place of
    pydantic's one for each type."""
    if value == "auto":
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        if 1 <= value <= MAX_BUCKETS:
            return value
        raise wrong(f"is {value}; must be auto, a number of buckets from 1 to {MAX_BUCKETS}, "
                    "or a list of lengths such as [32, 128, 512]")  # fmt: skip
    edges = listed(value)
    if not isinstance(edges, tuple):
        raise wrong("must be auto, a number of buckets or a list of lengths such as [32, 128, 512]")
    for position, edge in enumerate(edges):
        if isinstance(edge, bool) or not isinstance(edge, int) or not 1 <= edge <= LONGEST:
            raise wrong(f"is {edge!r}; must be a whole number of at least 1", position)
    return edges


class LengthBound(Section):
    gone = GONE["lengths"]
    max: int = Field(
        default=512,
        ge=1,
        le=LONGEST,
        description="Longest row accepted, in tokens. A model that cannot take rows of this length "
        "does not start. Left out, it is less where the model's files say so (`max_seq_length` in "
        "`sentence_bert_config.json`, the positions in a folder's `config.json`).",
    )


class LengthSettings(LengthBound):
    buckets: Annotated[Literal["auto"] | int | tuple[int, ...], BeforeValidator(_buckets)] = Field(
        default="auto",
        description="Buckets: the length intervals whose rows are batched together. A number: at "
        f"most so many (`auto`: {AUTO_BUCKETS}), whose upper edges start as powers of two from "
        f"{SHORTEST_BUCKET} and adapt to the lengths that arrive. A list: fixed upper edges, in "
        "tokens, ascending, the last one equal to `max`.",
    )
    input: str | None = Field(
        default=None,
        description="Input that has the length axis. Unset: as the model declares.",
    )
    axis: int | None = Field(
        default=None,
        ge=1,
        le=16,
        description="Number of the length axis; axis 0 is the batch. Unset: as the model declares.",
    )
    mask: str | None = Field(
        default=None,
        description="Input that is 1 for real tokens and 0 for padding. Unset: as the model "
        "declares.",
    )
    truncate: bool = Field(
        default=False,
        description="Whether longer rows are cut to `max`; if not, the request is refused.",
    )

    @property
    def max_is_said(self) -> bool:
        """Whether they say how long a row may be; if not, `max` is the default."""
        return "max" in self.model_fields_set or isinstance(self.buckets, tuple)

    @property
    def max_buckets(self) -> int | None:
        """Most buckets, if edges adapt; None if the edges are listed."""
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
    """The listed edges, or the edges to start from: inclusive upper edges in tokens, ascending, the
    last one `lengths.max`."""
    if isinstance(lengths.buckets, tuple):
        return lengths.buckets
    edges, most = [*_powers_below(lengths.max), lengths.max], lengths.max_buckets
    assert most is not None
    if len(edges) <= most:
        return tuple(edges)
    # Too many powers of two: keep every n-th, and always the longest.
    return tuple(edges[len(edges) * (n + 1) // most - 1] for n in range(most))


def _powers_below(limit: int) -> list[int]:
    edges = []
    edge = SHORTEST_BUCKET
    while edge < limit:
        edges.append(edge)
        edge *= 2
    return edges
