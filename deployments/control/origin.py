"""Where the settings of a server of one machine came from, and what its start chose itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deployments.control.source_folders import relative_to
from deployments.settings.plain import with_address
from deployments.settings.tree import Settings


@dataclass(frozen=True, slots=True)
class Origin:
    """`folder`: of the first file, against which relative paths are resolved. `address`: the host
    and port of the command line, which hold whatever a file says. `chosen`: ports and the
    ingress, by setting, where a file leaves them open."""

    folder: Path
    address: Mapping[str, Any] = field(default_factory=dict)
    chosen: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def told(cls, plain: Mapping[str, Any]) -> Origin:
        return cls(Path(plain["folder"]), plain["address"], plain["chosen"])

    def plain(self) -> dict[str, Any]:
        """The inverse of `told`, which JSON can carry."""
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
