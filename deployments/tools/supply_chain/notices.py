"""Third-party notices: licences of all packages of the environment this runs in, with their texts.

`python -m deployments.tools.supply_chain.notices`, on standard output. It uses the standard library
alone, so that an image writes its own while it is built.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath

_OWN = "headrace"
_TEXTS = ("licen", "copying", "notice", "authors", "copyright")
_RULE = "=" * 80
_UNKNOWN = "not declared"


def notices(installed: Iterable[Distribution]) -> Iterator[str]:
    """One part a package, by name."""
    by_name = {each.name.lower(): each for each in installed if each.name.lower() != _OWN}
    for name in sorted(by_name):
        each = by_name[name]
        heading = f"{each.name} {each.version}\nLicence: {licence(each)}\n"
        yield "\n".join([_RULE, heading, *_texts(each)])


def licence(each: Distribution) -> str:
    """As the package declares it: an SPDX expression, else its classifiers, else its own words."""
    declared = each.metadata.get_all("License-Expression") or [
        value.rpartition(" :: ")[2]
        for value in each.metadata.get_all("Classifier") or ()
        if value.startswith("License :: ") and value != "License :: OSI Approved"
    ]
    if declared:
        return ", ".join(declared)
    words = "".join(each.metadata.get_all("License") or ()).strip()
    return words.splitlines()[0] if words else _UNKNOWN


def _texts(each: Distribution) -> Iterator[str]:
    for file in each.files or ():
        if is_notice(PurePosixPath(file)) and Path(file.locate()).is_file():
            yield f"--- {file.name}\n{file.read_text(encoding='utf-8').strip()}\n"


def is_notice(path: PurePosixPath) -> bool:
    """A text of a licence among a package's metadata."""
    in_metadata = any(part.endswith(".dist-info") for part in path.parts)
    return in_metadata and path.name.lower().startswith(_TEXTS)


if __name__ == "__main__":
    sys.stdout.writelines(f"{part}\n" for part in notices(distributions()))
