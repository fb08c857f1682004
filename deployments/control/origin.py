"""Where the settings of a server of one machine came from, and what its start chose itself.

A copy of the settings file in another checkout names the same models by the same relative paths. If
the files there are the same, nothing has changed and nothing restarts. If they differ, the path is
made absolute, so that the model restarts from the new files.
"""

from __future__ import annotations

import filecmp
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deployments.settings import model_paths
from deployments.settings.plain import with_address
from deployments.settings.tree import Settings
from deployments.settings_files import sources


@dataclass(frozen=True, slots=True)
class Origin:
    """`folder`: of the first file, against which relative paths are resolved. `address`: the host
    and port of the command line, which hold whatever a file says. `chosen`: ports and the
    ingress, by setting, where a file leaves them open."""

    folder: Path
    address: Mapping[str, Any] = field(default_factory=dict)
    chosen: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Origin:
        return cls(Path(plain["folder"]), plain["address"], plain["chosen"])

    def plain(self) -> dict[str, Any]:
        """The inverse of `from_plain`, which JSON can carry."""
        return {"folder": str(self.folder), "address": {**self.address}, "chosen": {**self.chosen}}

    def completed(self, settings: Settings) -> Settings:
        """A file's settings, as this server runs them. Raises SettingsErrors."""
        gateway = settings.gateway
        named = gateway.model_fields_set - ({"ingress"} if gateway.ingress == "auto" else set())
        chosen = {name: value for name, value in self.chosen.items() if name not in named}
        return with_address(settings, chosen | dict(self.address))

    def settings(self, written: Settings, folder: Path) -> Settings:
        """Those of another file, as this server would run them. `written`: with paths as they stand
        in the file, of `folder`. Raises SettingsErrors."""
        return relative_to(self.completed(written), folder, self.folder)


def relative_to(settings: Settings, folder: Path, served: Path) -> Settings:
    """`settings` of a file in `folder`, with paths as written, for a server that resolves relative
    paths against `served`."""
    if folder == served:
        return settings
    data = settings.model_dump(mode="json", exclude_unset=True)

    def adapted(written: str) -> str:
        new, old = sources.absolute(written, folder), sources.absolute(written, served)
        # A folder for output need not exist yet, in either place.
        kept = new == old or not Path(new).exists() or same_content(Path(new), Path(old))
        return written if kept else new

    for model in data["models"].values():
        model_paths.change(model, adapted)
    return Settings.model_validate(data)


def same_content(one: Path, other: Path) -> bool:
    """Whether two files, or all files of two folders, have the same names and bytes."""
    if one.is_dir() != other.is_dir() or not other.exists():
        return False
    if one.is_file():
        return filecmp.cmp(one, other, shallow=False)
    names = _files(one)
    return names == _files(other) and all(
        filecmp.cmp(one / name, other / name, shallow=False) for name in names
    )


def _files(folder: Path) -> list[Path]:
    return sorted(each.relative_to(folder) for each in folder.rglob("*") if each.is_file())
