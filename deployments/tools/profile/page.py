"""A profile as one HTML file that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from deployments.tools.profile.figures import figures
from deployments.tools.profile.findings import Findings
from deployments.tools.profile.tables import tables
from loadtests.report import page
from loadtests.results.report_table import this_machine, today


def write(found: Findings, notes: Iterable[str], path: Path) -> None:
    """Raises OSError."""
    path.write_text(html(found, notes), encoding="utf-8")


def html(found: Findings, notes: Iterable[str]) -> str:
    name = found.subject.name
    return page.page(f"{name}: profile", _parts(found, list(notes)))


def _parts(found: Findings, notes: list[str]) -> Iterator[str]:
    subject, identity = found.subject, found.subject.identity
    facts = {
        "Backend": f"{identity.runtime} {identity.version}".strip(),
        "Precision": identity.precision,
        "Threads": str(identity.threads),
        "Artifact": identity.artifact[:12],
        "Lengths": subject.lengths.said,
        "Machine": this_machine(),
        "Date": today(),
    }
    yield page.header(subject.name, "What it costs on this machine.", facts)
    if found.stopped:
        yield page.notice("Stopped before the end; what is here was measured.", good=False)
    yield page.section("Tables", [page.table(each) for each in tables(found)])
    yield page.section("Pictures", [page.figure(each) for each in figures(found)], "figures")
    yield page.section("For serving", [page.words(note) for note in notes])
