"""Lists a server's keys, and revokes one at once, also for its later starts.

Revoking takes no lock, asks neither the registry nor Serve, and waits for no `apply` under way. The
key's hash goes into the cluster's store, which gateways read twice a second, and into a file on
this machine, from which the next start reads it. So a settings file that still lists the key does
not bring it back.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from deployments.process import line_files
from deployments.process.key_list import key_rows, revoked_key
from deployments.settings.gateway import GatewaySettings
from deployments.settings.tree import TenantsSettings
from deployments.settings_files.load import load_tenants, parse_tenants

logger = logging.getLogger("headrace.host")
_KEEPS_S = 1.0


class TenantsStore(Protocol):
    """`deployments.process.tenants_store`, which imports Ray. Each call may raise."""

    def fetch(self) -> str | None: ...

    def revoke(self, key_hash: str) -> None: ...

    def revoked(self) -> frozenset[str]: ...


class KeyRevocation:
    """`file`: this machine's list of revoked hashes. Tenants are the published ones, or those at
    `gateway.tenants_path`."""

    def __init__(
        self,
        store: TenantsStore,
        file: Path,
        gateway: GatewaySettings,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._file = file
        self._gateway = gateway
        self._wall = wall
        self._clock, self._keeps_at = clock, 0.0

    def recall(self) -> None:
        """Revoke again, in the cluster's store, what was revoked before this start."""
        for key_hash in self._remembered():
            self._store.revoke(key_hash)

    def keep(self) -> None:
        """Write down keys that were revoked at a gateway, so that a restart keeps them revoked.
        Looks once a second."""
        if (now := self._clock()) < self._keeps_at:
            return
        self._keeps_at = now + _KEEPS_S
        with contextlib.suppress(Exception):  # if the store is away, the next look gets them
            for key_hash in self._store.revoked().difference(self._remembered()):
                self._remember(key_hash)

    def listing(self) -> dict[str, Any]:
        """{"keys": a list of `KeyRow`}."""
        keys = self._tenants().all_keys()
        return {"keys": key_rows(keys, self._store.revoked(), self._wall())}

    def revoke(self, request: dict[str, Any]) -> dict[str, Any]:
        """Revoke a key. `request`: {"key": id or hash}. Returns a `RevokedKey`, or {"error": why
        not}."""
        try:
            owner, key = self._tenants().key_called(request["key"])
        except ValueError as unknown:
            return {"error": str(unknown)}
        self._store.revoke(key.hash)
        if key.hash not in self._remembered():
            self._remember(key.hash)
        return dict(revoked_key(owner, key))

    def _tenants(self) -> TenantsSettings:
        """The tenants in force. Raises ValueError, of which SettingsErrors is one."""
        if self._gateway.tenants_path is not None:
            return load_tenants(self._gateway.tenants_path, self._gateway.priorities)
        text = self._store.fetch()
        if text is None:
            raise ValueError("the server has published no tenants yet")
        return parse_tenants(text, "the published tenants", self._gateway.priorities)

    def _remember(self, key_hash: str) -> None:
        """Write the hash down. If that fails, the key is still revoked until the next start."""
        try:
            line_files.append(self._file, key_hash.encode("ascii") + b"\n")
        except OSError as fault:
            logger.error("%s cannot be written: %s; a restart forgets it", self._file, fault)

    def _remembered(self) -> list[str]:
        try:
            return self._file.read_text(encoding="ascii").split()
        except FileNotFoundError:
            return []
