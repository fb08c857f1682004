"""Reads the description of each value from the comments of `values.yaml`.

As in helm-docs, a description begins with `# --` and ends at the key that it stands above.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_KEY = re.compile(r"(?P<indent> *)(?P<name>[A-Za-z][\w.-]*):(?: |$)")
_BEGIN = "# --"

ValuePath = tuple[str, ...]


def comments(values: str) -> dict[ValuePath, str]:
    """Descriptions by the path of their key, in the file's order. `values`: the file's text."""
    return dict(_commented(values.splitlines()))


def _commented(lines: list[str]) -> Iterator[tuple[ValuePath, str]]:
    above: list[str] = []
    path: list[tuple[int, str]] = []
    for line in lines:
        text = line.strip()
        if text.startswith(_BEGIN):
            above = [text.removeprefix(_BEGIN).strip()]
        elif text.startswith("#") and above:
            above.append(text.removeprefix("#").strip())
        elif found := _KEY.match(line):
            depth = len(found["indent"])
            path = [*(each for each in path if each[0] < depth), (depth, found["name"])]
            if above:
                yield tuple(name for _, name in path), " ".join(above)
            above = []
        else:
            above = []
