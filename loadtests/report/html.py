"""Writes a run's report as one HTML file.

The page says first whether the run counts and which share of requests was in time; then it has
tables, pictures, and the command that reproduces the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from loadtests.report import page
from loadtests.report.figures import figures
from loadtests.report.table import tables, verdict
from loadtests.results.record import Record


def write(record: Record, path: Path) -> None:
    """Writes the page; creates missing folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html(record), encoding="utf-8")


def html(record: Record) -> str:
    return page.page(f"{record.name}: load test", _parts(record))


def _parts(record: Record) -> Iterator[str]:
    yield page.header(record.name, record.about, facts(record))
    yield page.notice(verdict(record), good=not record.client.behind)
    if record.checks:
        good = not record.client.behind and all(held for _, _, held in record.checks)
        yield page.notice(_promises(record), good=good)
    yield page.section("Tables", [page.table(each) for each in tables(record)])
    yield page.section("Pictures", [page.figure(each) for each in figures(record)], "figures")
    if record.scenario:
        text = yaml.safe_dump(record.scenario, sort_keys=False, allow_unicode=True)
        yield page.section("To run it again", [page.folded("The scenario", page.code(text))])


def facts(record: Record) -> dict[str, str]:
    """What was run, where and when, by name."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    return {
        "Target": record.url,
        "Protocol": record.protocol,
        "Model": record.model,
        "Started": record.started,
        "Machine": record.machine,
        "Versions": versions,
        "Command": record.command,
    }


def _promises(record: Record) -> str:
    broken = [claim for claim, _, held in record.checks if not held]
    if not broken:
        where = ", but in a run that does not count" if record.client.behind else ""
        return f"Every promise was kept ({len(record.checks)}){where}."
    return f"Broken: {'; '.join(broken)}."
