"""What `values.yaml` says of each value: the comment lines that begin with `# --`, as helm-docs has
them, up to the key that they stand above.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_KEY = re.compile(r"(?P<indent> *)(?P<name>[A-Za-z][\w.-]*):(?: |$)")
_BEGIN = "# --"

ValuePath = tuple[str, ...]


def comments(values: str) -> dict[ValuePath, str]:
    """By the path of the key, in the file's order."""
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
