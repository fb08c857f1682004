"""The tenants in a file that may be replaced while the gateway runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from deployments.gateway.tenancy.tenants import Tenants
from deployments.settings.gateway import PRIORITIES
from deployments.settings.load import SettingsErrors, load_tenants


class TenantsFile:
    """The tenants in a file that may be replaced at any time, by a rename or a switched link, and
    beside them whether controllers are `frozen`.

    `current` is always whole and valid: a file that cannot be used leaves the last good one in
    force and says why in `problem`. Reading a large file takes a while; call `refresh` from a
    thread. The first reading has nothing to fall back on but `fallback`, and raises SettingsErrors
    without one. `priorities`: the gateway's, which don't change while it runs.
    """

    def __init__(
        self,
        path: Path | str,
        priorities: Sequence[str] = PRIORITIES,
        *,
        fallback: Tenants | None = None,
    ) -> None:
        self._path = Path(path)
        self._priorities = tuple(priorities)
        self._seen: tuple[int, int, int, int] | None = None
        self.problem: str | None = None
        self.frozen = False
        if fallback is None:
            self._seen = self._signature()
            self._read()
        else:
            self.current = fallback
            self.refresh()

    def refresh(self) -> bool:
        """Reads the file if it is another than last time; whether `current` was replaced."""
        # Taken before the file is read: a change in between is then seen next time.
        signature = self._signature()
        if signature is not None and signature == self._seen:
            return False
        self._seen = signature
        try:
            self._read()
        except SettingsErrors as error:
            self.problem = str(error)
            return False
        self.problem = None
        return True

    def _read(self) -> None:
        loaded = load_tenants(self._path, self._priorities)
        self.current = Tenants(loaded.tenants, self._priorities)
        self.frozen = loaded.controllers.frozen

    def _signature(self) -> tuple[int, int, int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
