"""What should the engine of a model that generates be started with, given recorded lengths?

Nothing is loaded: a context follows from the lengths alone. What a step takes at so many sequences
is known once the engine runs; then `engines.most_sequences` says how many a tight budget allows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from deployments.profile.engines import Contexts, contexts
from deployments.profile.subject import Chosen
from loadtests.report.table import aligned
from loadtests.results.report_table import Table


def show(found: Chosen, *, as_json: bool) -> int:
    """The exit code; nothing is stored."""
    proposed = contexts(found.lengths.all)
    if as_json:
        print(json.dumps({"model": found.name, "max_model_len": asdict(proposed)}))
        return 0
    table = table_of(found, proposed)
    print("\n".join([table.caption, "", *aligned(table), "", *sentences(found, proposed)]))
    return 0


def table_of(found: Chosen, proposed: Contexts) -> Table:
    rows = tuple(
        (each.tokens, f"{each.refused * 100:.2f} %", "proposed" if not place else "")
        for place, each in enumerate((proposed.proposed, *proposed.shorter))
    )
    return Table(
        f"{found.name}: contexts for {len(found.lengths.all):,} requests of {found.lengths.said}",
        ("max_model_len", "would refuse", ""),
        rows,
    )


def sentences(found: Chosen, proposed: Contexts) -> Iterator[str]:
    yield (f"The longest served had {proposed.longest:,} tokens; {proposed.proposed.tokens:,} "
           "leave 15 % above it.")  # fmt: skip
    own = found.model.lengths.max
    if own < proposed.longest:
        share = sum(length > own for length in found.lengths.all) / len(found.lengths.all)
        yield f"lengths.max is {own:,} and refuses {share:.2%} of them."
    elif own > proposed.proposed.tokens:
        yield f"lengths.max is {own:,}, more than they need: lower it, and set max_model_len."
