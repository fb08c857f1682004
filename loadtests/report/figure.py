"""What is a figure? A picture, its legend, what it says, and its numbers for who cannot see it."""

from __future__ import annotations

from dataclasses import dataclass

from loadtests.results.report_table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """`svg`: the picture. `legend`: what each series or mark is, in its order; `shapes`: marks
    rather than lines."""

    title: str
    says: str
    svg: str
    table: Table
    legend: tuple[str, ...] = ()
    shapes: bool = False
