"""Prints the result of `headrace cluster check`: a line for each node, then each finding and its
remedy.

Facts and findings are the caller's; this module neither asks nodes nor judges.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from deployments.control.preflight.node_facts import UNLIMITED, NodeFacts
from deployments.control.preflight.preflight import NodeFinding

_TOPICS = {"ENV": "environment", "WRAPPER": "wrapper", "CACHES": "caches", "PORTS": "ports"}
_STYLE = {"error": "red", "warning": "yellow"}


def as_json(nodes: Sequence[NodeFacts], found: Sequence[NodeFinding]) -> str:
    """JSON; `ok` says that no finding is an error."""
    return json.dumps(
        {
            "ok": all(each.level != "error" for each in found),
            "nodes": [asdict(each) for each in nodes],
            "findings": [asdict(each) for each in found],
        },
        indent=2,
    )


def table(nodes: Sequence[NodeFacts], found: Sequence[NodeFinding]) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("NODE", "HEADRACE", "RAY", "PYTHON", *_TOPICS):
        made.add_column(heading, overflow="fold")
    for heading in ("CLOCK", "FILES"):
        made.add_column(heading, justify="right", no_wrap=True)
    for node in nodes:
        made.add_row(*_cells(node, [each for each in found if each.node == node.address]))
    return made


def show(
    nodes: Sequence[NodeFacts], found: Sequence[NodeFinding], console: Console | None = None
) -> None:
    target = console or Console(soft_wrap=True)
    target.print(table(nodes, found))
    for each in found:
        where = f"{each.node}: " if each.node else ""
        target.print(
            Text.assemble(
                (each.level, _STYLE[each.level]), f": {where}{each.message}\n  {each.mend}"
            )
        )
    if not found:
        target.print("nothing is wrong")


def _cells(node: NodeFacts, found: Sequence[NodeFinding]) -> list[str]:
    name = f"{node.address} (head)" if node.head else node.address
    if node.error:
        return [name, "cannot be asked"]
    versions = [node.versions[each] for each in ("headrace", "ray", "python")]
    clock = f"{node.clock_ahead_s * 1e3:+.0f}±{node.clock_error_s * 1e3:.0f} ms"
    files = "unlimited" if node.open_files == UNLIMITED else str(node.open_files)
    return [name, *versions, *(_worst(topic, found) for topic in _TOPICS.values()), clock, files]


def _worst(topic: str, found: Sequence[NodeFinding]) -> str:
    levels = {each.level for each in found if each.topic == topic}
    return "error" if "error" in levels else "warning" if levels else "ok"
