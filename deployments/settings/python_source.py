"""A source that names a Python class: `python:my_package.module:Class` or `folder:module:Class`.

Of the first form the module is imported by its name, wherever the replica finds it. Of the second
the folder is a source like any other: a path, `package:NAME/inside`, or a URL with its digest.
"""

from __future__ import annotations

import re
from typing import NamedTuple

IMPORTED = "python:"
FORMS = "python:my_package.module:ClassName or path/to/folder:module:ClassName"
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_CLASS = re.compile(rf"(.+):({_NAME}(?:\.{_NAME})*):({_NAME})", re.DOTALL)
_BY_NAME = re.compile(rf"{IMPORTED}({_NAME}(?:\.{_NAME})*):({_NAME})")


class PythonClass(NamedTuple):
    """`folder`: a source, "" for a module that is imported by its name."""

    folder: str
    module: str
    name: str

    @property
    def entry(self) -> str:
        """As `RuntimeSettings.entry` has it."""
        return f"{'' if self.folder else IMPORTED}{self.module}:{self.name}"


def python_class(source: str) -> PythonClass | None:
    """None: the source names no class."""
    if found := _BY_NAME.fullmatch(source):
        return PythonClass("", found[1], found[2])
    if source.startswith(IMPORTED) or not (found := _CLASS.fullmatch(source)):
        return None
    return PythonClass(found[1], found[2], found[3])


def folder_of(source: str) -> str:
    """The source without the class in it; unchanged where it names none, or no folder."""
    found = python_class(source)
    return found.folder if found is not None and found.folder else source


def with_folder(source: str, folder: str) -> str:
    """The same class in another folder; `folder` where the source names no class in one."""
    found = python_class(source)
    if found is None or not found.folder:
        return folder
    return f"{folder}:{found.module}:{found.name}"
