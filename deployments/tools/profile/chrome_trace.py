"""A profile as a timeline: open it at chrome://tracing or ui.perfetto.dev.

One line of phases, one of batches, one of their stages. Source: the Trace Event Format, complete
events (`ph` X), microseconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from deployments.tools.profile.findings import Findings
from runtimes.types import StageTimes

_LINES = {1: "phases", 2: "batches", 3: "stages"}


def events(found: Findings) -> Iterator[dict[str, Any]]:
    """In no order; times from the first phase's begin."""
    origin_s = min((span.began_s for span in found.spans), default=0.0)
    yield _name("process_name", 0, f"headrace profile {found.subject.name}")
    for line, name in _LINES.items():
        yield _name("thread_name", line, name)
    for span in found.spans:
        yield _event(span.name, 1, span.began_s - origin_s, span.ended_s - span.began_s, {})
    for sample in found.samples:
        at, timed = sample.began_s - origin_s, sample.timed
        about = {"rows": timed.rows, "tokens": timed.tokens, "longest": max(timed.lengths),
                 "held_out": timed.held}  # fmt: skip
        yield _event(f"{timed.rows} x {max(timed.lengths)}", 2, at, sample.took_s, about)
        for part in fields(StageTimes):
            took_s = getattr(sample.stages, part.name)
            yield _event(part.name.removesuffix("_s"), 3, at, took_s, {})
            at += took_s


def write(found: Findings, path: Path) -> None:
    """Raises OSError; then what was there is still there."""
    text = json.dumps({"displayTimeUnit": "ms", "traceEvents": _listed(events(found))})
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _listed(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda event: (event["ph"] != "M", event.get("ts", 0.0)))


def _name(what: str, line: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 1, "tid": line, "args": {"name": name}}


def _event(
    name: str, line: int, at_s: float, took_s: float, about: dict[str, Any]
) -> dict[str, Any]:
    return {"name": name, "ph": "X", "pid": 1, "tid": line, "ts": round(at_s * 1e6, 1),
            "dur": round(took_s * 1e6, 1), "args": about}  # fmt: skip
