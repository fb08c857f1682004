"""Writes `docs/benchmarks.md` from the benches' reports alone.

`python -m loadtests.benches.document` writes a section for each report under `out/bench`, in a
fixed order, with its command, machine and date. A bench without a report there keeps its present
section of the page; a bench that never had a report has none.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from loadtests.results.report_table import FIGURES, REPORT_DIR, BenchReport, as_markdown, read

PAGE = Path("docs/benchmarks.md")
ORDER = (
    "generator",
    "overhead",
    "protocols",
    "tabular",
    "rerank",
    "encoders",
    "compare",
    "big_tensors",
    "overload",
    "tails",
    "ragged_embeddings",
    "generation",
    "small_generation",
    "memory_start",
    "scaling_spike",
    "simulated_against_real",
    "policies",
    "endurance",
)
# Run only by name: they need `make compare`, `make vllm`, root, or half an hour and more.
APART = (
    "tabular",
    "rerank",
    "encoders",
    "compare",
    "generation",
    "small_generation",
    "scaling_spike",
    "nodes",
    "endurance",
)
# In virtual time. These import the scheduling core, so they are in the folder of its tests.
SIMULATED = ("edges", "swapping")
OF_RUNTIMES = ("staging",)  # these import the runtimes
ON_NODES = ("nodes",)  # on nodes in network namespaces; in the folder of the cluster's tests
HEADER = """# Benchmarks

Every figure names the command that reproduces it, the machine and the day. Client and servers share
the machine; systems under comparison alternate within one run and medians are compared, so ratios
hold where absolute numbers drift. `make bench` runs all of it but the comparison with other
servers, which `make compare` does.
"""
SECTION = re.compile(r"<!-- figure (\w+) -->\n(.*?)(?=\n<!-- figure |\Z)", re.S)


def sections_of(page: str) -> dict[str, str]:
    return {name: text.strip() + "\n" for name, text in SECTION.findall(page)}


def page_of(sections: Mapping[str, str]) -> str:
    """The page: known sections in their order, then others by name."""
    order = ORDER + SIMULATED + OF_RUNTIMES + ON_NODES
    known = [name for name in order if name in sections]
    rest = sorted(name for name in sections if name not in order)
    parts = (f"<!-- figure {name} -->\n{sections[name].strip()}\n" for name in known + rest)
    return "\n".join((HEADER, *parts))


def reports_in(folder: Path) -> list[BenchReport]:
    return [read(path) for path in sorted(folder.glob("*.json"))]


def updated(page: str, reports: list[BenchReport]) -> str:
    fresh = {report.name: as_markdown(report) for report in reports}
    return page_of(sections_of(page) | fresh)


def draw(reports: list[BenchReport], folder: Path) -> None:
    for picture in (each for report in reports for each in report.pictures):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{picture.name}.svg").write_text(picture.svg)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.benches.document", description=__doc__
    )
    parser.add_argument("--reports", type=Path, default=REPORT_DIR)
    parser.add_argument("--page", type=Path, default=PAGE)
    asked = parser.parse_args(argv)
    reports = reports_in(asked.reports)
    if not reports:
        print(f"no reports under {asked.reports}", file=sys.stderr)
        return 1
    draw(reports, asked.page.parent / FIGURES)
    old = asked.page.read_text() if asked.page.exists() else ""
    asked.page.write_text(updated(old, reports))
    print(f"{asked.page}: {', '.join(report.name for report in reports)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
