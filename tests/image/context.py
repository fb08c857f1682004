"""What a builder is sent of this folder: all that .dockerignore leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pathspec

from tests.image.dockerfile import ROOT

IGNORE = ROOT / ".dockerignore"


def ignored() -> pathspec.PathSpec:
    """Our patterns mean the same to Git and to Docker: names at the top, and what `**/` begins."""
    lines = [_at_the_top(line) for line in IGNORE.read_text().splitlines()]
    return pathspec.PathSpec.from_lines("gitwildmatch", lines)


def files(root: Path = ROOT) -> Iterator[str]:
    """Paths below `root`, sorted."""
    spec = ignored()
    for folder, below, names in os.walk(root):
        here = Path(folder).relative_to(root)
        below[:] = sorted(each for each in below if not _whole(spec, here / each))
        yield from (str(here / name) for name in sorted(names) if not spec.match_file(here / name))


def _at_the_top(line: str) -> str:
    if line.startswith(("#", "**/")) or not line:
        return line
    return f"!/{line[1:]}" if line.startswith("!") else f"/{line}"


def _whole(spec: pathspec.PathSpec, folder: Path) -> bool:
    return bool(spec.match_file(f"{folder}/"))
