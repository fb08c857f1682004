"""Which keys a server has, and the end of one of them, at once and for good.

A path of its own: it takes no lock, asks neither the registry nor Serve, and waits for no `apply`
that is under way. The hash goes into the cluster's store, where gateways look twice a second; and
into a file of this machine, from which the next start takes it, so that a settings file that still
lists the key does not bring it back.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from deployments.contract import line_files
from deployments.contract.key_list import key_rows
from deployments.settings.gateway import GatewaySettings
from deployments.settings.load import load_tenants, parse_tenants
from deployments.settings.tree import TenantsSettings

logger = logging.getLogger("headrace.host")
_KEEPS_S = 1.0


class Store(Protocol):
    """What this needs of the cluster; each call may raise."""

    def published_tenants(self) -> str | None: ...

    def revoke(self, key_hash: str) -> None: ...

    def revoked(self) -> frozenset[str]: ...


class KeyRevocation:
    """`file`: this machine's. Tenants are those published, or those at `gateway.tenants_path`."""

    def __init__(
        self,
        store: Store,
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
        """What was revoked before this start stays so."""
        for key_hash in self._remembered():
            self._store.revoke(key_hash)

    def keep(self) -> None:
        """What was revoked at a gateway holds after a restart, too; looks once a second."""
        if (now := self._clock()) < self._keeps_at:
            return
        self._keeps_at = now + _KEEPS_S
        with contextlib.suppress(Exception):  # a store that is away: the next look has it
            for key_hash in self._store.revoked().difference(self._remembered()):
                self._remember(key_hash)

    def listing(self) -> dict[str, Any]:
        """{"keys": a `KeyRow` each}."""
        return {"keys": key_rows(self._tenants(), self._store.revoked(), self._wall())}

    def revoke(self, request: dict[str, Any]) -> dict[str, Any]:
        """`request`: {"key": id or hash}. {"revoked": id, "owner": whose it was}, or {"error":
        why}."""
        try:
            owner, key = self._tenants().key_called(request["key"])
        except ValueError as unknown:
            return {"error": str(unknown)}
        self._store.revoke(key.hash)
        if key.hash not in self._remembered():
            self._remember(key.hash)
        return {"revoked": key.kid, "owner": owner}

    def _tenants(self) -> TenantsSettings:
        """Raises SettingsErrors, a ValueError."""
        if self._gateway.tenants_path is not None:
            return load_tenants(self._gateway.tenants_path, self._gateway.priorities)
        text = self._store.published_tenants()
        if text is None:
            raise ValueError("the server has published no tenants yet")
        return parse_tenants(text, "the published tenants", self._gateway.priorities)

    def _remember(self, key_hash: str) -> None:
        """What cannot be written holds all the same, until the next start."""
        try:
            line_files.append(self._file, key_hash.encode("ascii") + b"\n")
        except OSError as fault:
            logger.error("%s cannot be written: %s; a restart forgets it", self._file, fault)

    def _remembered(self) -> list[str]:
        try:
            return self._file.read_text(encoding="ascii").split()
        except FileNotFoundError:
            return []
