"""The tenants that are in force, from where they may be replaced while the gateway runs.

Either a file or folder on the gateway's node (a mounted ConfigMap and its Secrets, replaced by a
rename or a switched link), or what was published in the cluster's store. Whichever it is: what
cannot be used, or is gone, leaves the last good one in force and says why; nothing at all never
means that everybody may come in, and neither do lists of keys that are gone. Beside them, keys that
were revoked open nothing, whatever the tenants say: revoking waits for no file and no deployment.
A folder may name revoked keys too, so that another cluster knows them.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from deployments.gateway.tenancy.tenants import KeyTable, Tenants
from deployments.process import audit
from deployments.process.key_list import KeyRow, RevokedKey, key_rows, revoked_key
from deployments.settings.gateway import PRIORITIES
from deployments.settings.plain import SettingsErrors
from deployments.settings.tree import TenantsSettings
from deployments.settings_files.load import load_tenants, parse_tenants, tenants_text
from yaml_document.mistakes import Mistake

_OPENS = (
    "no tenant has a list of keys any more, which would let everybody in; restart the gateways, "
    "with gateway.auth: open, if that is meant"
)
_PUBLISHED = "the published tenants"
_HASH = re.compile(r"[0-9a-f]{64}")
logger = logging.getLogger("headrace.gateway")


class TenantsSource(Protocol):
    """`auth`: what holds where the settings do not say it. `origin`: what it is, in words.
    `frozen`: the controllers' switch as an operator has set it; None: the tenants say it."""

    auth: str | None

    origin: str

    frozen: bool | None

    def signature(self) -> Hashable | None:
        """Of what would be read now: another one where it was replaced. None: it is not there.
        Looks at the switch, too."""

    def read(self, priorities: Sequence[str]) -> TenantsSettings:
        """Raises SettingsErrors."""

    def freeze(self, frozen: bool) -> None:
        """For all gateways. Raises ValueError with the reason where it cannot."""


class TenantsPath:
    """A file, or a folder whose *.yaml files say it together. A file of keys that is not there is
    more likely lost than meant, by a gateway that starts, too."""

    auth: str | None = "required"
    frozen: bool | None = None

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self.origin = str(path)

    def signature(self) -> Hashable | None:
        try:
            return tuple(_signature(each) for each in self._files())
        except OSError:
            return None

    def _files(self) -> list[Path]:
        return sorted(self._path.glob("*.yaml")) if self._path.is_dir() else [self._path]

    def read(self, priorities: Sequence[str]) -> TenantsSettings:
        return load_tenants(self._path, priorities)

    def freeze(self, frozen: bool) -> None:
        raise ValueError(
            f"{self._path} says who the tenants are and what is frozen; change it there"
        )


def _signature(path: Path) -> tuple[str, int, int, int, int]:
    status = os.stat(path)
    return path.name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _unset() -> None:
    return None


def _fixed(frozen: bool) -> None:
    raise ValueError("the controllers' switch cannot be turned here")


@dataclass(frozen=True, slots=True)
class OperatorsSwitch:
    """Of the controllers, in the cluster's store: `fetch` it, None where nobody has set it, `turn`
    it for all gateways; either may raise what the store raises."""

    fetch: Callable[[], bool | None] = _unset
    turn: Callable[[bool], None] = _fixed


class PublishedTenants:
    """`fetch`: the text in the cluster's store, None where there is none; it may raise."""

    auth: str | None = None
    origin = _PUBLISHED

    def __init__(
        self, fetch: Callable[[], str | None], switch: OperatorsSwitch | None = None
    ) -> None:
        self._fetch = fetch
        self._switch = switch or OperatorsSwitch()
        self.frozen: bool | None = None
        self._text: str | None = None
        self._fault = "nobody has published any"

    def signature(self) -> Hashable | None:
        try:
            # Tenants are published first, the switch is cleared then: not the other way round.
            frozen = self._switch.fetch()
            self._text = self._fetch()
            self.frozen = frozen
        except Exception as fault:
            # Whatever keeps the store from answering: what was read last stays in force.
            self._text, self._fault = None, f"the cluster's store does not answer ({fault})"
        return self._text

    def read(self, priorities: Sequence[str]) -> TenantsSettings:
        if self._text is None:
            raise SettingsErrors([Mistake(_PUBLISHED, 0, "", f"cannot be read: {self._fault}")])
        return parse_tenants(self._text, _PUBLISHED, priorities)

    def freeze(self, frozen: bool) -> None:
        self._switch.turn(frozen)


def _nowhere(key_hash: str) -> None:
    raise ValueError("keys cannot be revoked here")


@dataclass(frozen=True, slots=True)
class RevokedKeys:
    """Hashes of keys that open nothing any more, for all gateways: of the cluster's store, to which
    `add` adds one, and of a folder that outlives the cluster. Each may raise."""

    fetch: Callable[[], frozenset[str]] = frozenset
    add: Callable[[str], None] = _nowhere
    listed: Callable[[], frozenset[str]] = frozenset


class RevokedFolder:
    """A folder on this node whose files are named by the hashes, without `sha256:`, of keys that
    are revoked (a mounted ConfigMap). What is in the files is for people."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told: set[str] = set()

    def hashes(self) -> frozenset[str]:
        """Raises OSError where the folder cannot be read."""
        names = {each for each in os.listdir(self._path) if not each.startswith(".")}
        wrong = {each for each in names if not _HASH.fullmatch(each)}
        for each in wrong - self._told:
            logger.error("%s: revokes no key: a file's name must be 64 hex digits", each)
        self._told |= wrong
        return frozenset(f"sha256:{each}" for each in names - wrong)


class LiveTenants:
    """`current` is always whole and valid: a source that cannot be used leaves the last good one in
    force and says why in `problem`; beside it whether controllers are `frozen`. Reading may take a
    while: call `refresh` from a thread. `priorities`, `auth`: the gateway's, which don't change
    while it runs. The first reading has nothing to fall back on, and raises SettingsErrors.
    `digest`: of all that is in force. `revoked`: where they cannot be had, the last ones stay so.
    `wall`: seconds since the epoch.
    """

    def __init__(
        self,
        source: TenantsSource,
        priorities: Sequence[str] = PRIORITIES,
        auth: str | None = None,
        revoked: RevokedKeys | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._source = source
        self._revocations, self._revoked = revoked or RevokedKeys(), frozenset[str]()
        self._wall = wall
        self._clock, self._found_at = clock, clock()
        self._looking = threading.Lock()
        self._priorities = tuple(priorities)
        self._auth = auth
        self.current = Tenants({}, self._priorities)
        self.problem: str | None = None
        self.digest = ""
        self._settings = TenantsSettings()
        found, _ = self._look_for_revoked()
        if not found:
            raise SettingsErrors(
                [Mistake(_PUBLISHED, 0, "", "which keys are revoked cannot be had yet")]
            )
        self._seen = source.signature()
        self._read()

    @property
    def origin(self) -> str:
        """Where they are read, in words."""
        return self._source.origin

    @property
    def frozen(self) -> bool:
        said = self._source.frozen
        return self._settings.controllers.frozen if said is None else said

    @property
    def age_s(self) -> float:
        return self._clock() - self._found_at

    def refresh(self) -> bool:
        """Reads the source if it is another than last time, and what was revoked; whether `current`
        was replaced. One look at a time, from whatever thread: what an older one was told must not
        come after what a newer one found."""
        with self._looking:
            return self._look()

    def _look(self) -> bool:
        began = self._clock()
        found, revoked = self._look_for_revoked()
        # Taken before it is read: a change in between is then seen next time.
        signature = self._source.signature()
        if found and signature is not None:
            self._found_at = began
        if signature is None or signature != self._seen:
            self._seen = signature
            try:
                self._read()
            except SettingsErrors as error:
                self.problem = str(error)
            else:
                self.problem = None
                return True
        if revoked:
            self._take(self._settings)
        return revoked

    def _look_for_revoked(self) -> tuple[bool, bool]:
        """Whether what is revoked could be had, and whether it is other than it was."""
        found, revoked = True, frozenset[str]()
        for ask in (self._revocations.fetch, self._revocations.listed):
            try:
                revoked |= ask()
            except Exception:  # whatever keeps it from answering: the last ones stay revoked
                found, revoked = False, revoked | self._revoked
        changed, self._revoked = revoked != self._revoked, revoked
        return found, changed

    def publish_frozen(self, frozen: bool) -> None:
        """The controllers' switch, for all gateways, whatever tenants are published. Raises
        ValueError where it cannot be set, and what the store raises."""
        self._source.freeze(frozen)

    def key_rows(self) -> list[KeyRow]:
        return key_rows(self._settings.all_keys(), self._revoked, self._wall())

    def revoke(self, name: str) -> RevokedKey:
        """As `KnownTenants`; raises what the store raises besides."""
        owner, key = self._settings.key_called(name)
        self._revocations.add(key.hash)
        self.refresh()
        return revoked_key(owner, key)

    def _read(self) -> None:
        self._take(self._source.read(self._priorities))

    def _take(self, loaded: TenantsSettings) -> None:
        table = KeyTable(loaded.operators.keys, self._revoked, self._wall)
        try:
            auth = self._auth or self._source.auth
            tenants = Tenants(loaded.tenants, self._priorities, auth, table)
        except ValueError as wrong:
            raise SettingsErrors([Mistake("tenants", 0, "", str(wrong))]) from None
        if self._auth is None and self.current.lists_keys and not tenants.lists_keys:
            raise SettingsErrors([Mistake("tenants", 0, "", _OPENS)])
        self._settings = loaded
        self.digest = audit.digest(tenants_text(loaded) + "".join(sorted(self._revoked)))
        self.current = tenants
