"""The tenants that are in force, from where they may be replaced while the gateway runs.

Either a file or folder on the gateway's node (a mounted ConfigMap and its Secrets, replaced by a
rename or a switched link), or what was published in the cluster's store. Whichever it is: what
cannot be used, or is gone, leaves the last good one in force and says why; nothing at all never
means that everybody may come in, and neither do lists of keys that are gone. Beside them, keys that
were revoked open nothing, whatever the tenants say: revoking waits for no file and no deployment.
A folder may name revoked keys too, so that another cluster knows them. What was once heard to be
revoked stays so.
"""

from __future__ import annotations

import logging
import math
import os
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
from deployments.settings.key import HASH
from deployments.settings.plain import SettingsErrors
from deployments.settings.tree import TenantsSettings
from deployments.settings_files.load import load_tenants, parse_tenants, tenants_text
from yaml_document.mistakes import Mistake

_OPENS = (
    "no tenant has a list of keys any more, which would let everybody in; restart the gateways, "
    "with gateway.auth: open, if that is meant"
)
_PUBLISHED = "the published tenants"
_ANSWERS_S = 0.2  # that a look waits for the folder; a mounted one takes 0.1 ms
_OLD_S = 5.0
_SETTLES_S = 3.0  # two changes within a file system's tick have the same time
_LISTS_S = 30.0  # some file systems keep no time of a folder
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


class RevokedFolder:
    """A folder on this node whose files are named by the hashes, without `sha256:`, of keys that
    are revoked (a mounted ConfigMap). What is in the files is for people. A thread of its own looks
    into it: a file system that hangs (NFS) holds nobody else up."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._looking: threading.Thread | None = None
        self._hashes, self._fault = frozenset[str](), ""
        self._read_at = self._listed_at = self._changed_at = -math.inf
        self._seen: Hashable = None
        self._told: set[str] = set()

    def hashes(self) -> frozenset[str]:
        """As of the last few seconds. Raises OSError where the folder cannot be read."""
        if self._looking is None or not self._looking.is_alive():
            self._looking = threading.Thread(target=self._look, daemon=True)
            self._looking.start()
            self._looking.join(_ANSWERS_S)
        if self._fault:
            raise OSError(f"{self._path}: {self._fault}")
        if self._clock() - self._read_at > _OLD_S:
            raise TimeoutError(f"{self._path} does not answer")
        return self._hashes

    def _look(self) -> None:
        began = self._clock()
        try:
            status = os.stat(self._path)
            signature = status.st_dev, status.st_ino, status.st_mtime_ns
            if signature != self._seen:
                self._seen, self._changed_at = signature, began
            if began - self._changed_at < _SETTLES_S or began - self._listed_at > _LISTS_S:
                self._hashes, self._listed_at = self._list(), began
        except OSError as fault:
            self._seen, self._fault = None, fault.strerror or str(fault)
        else:
            self._read_at, self._fault = began, ""

    def _list(self) -> frozenset[str]:
        names = {each for each in os.listdir(self._path) if not each.startswith(".")}
        found = frozenset(key for each in names if HASH.fullmatch(key := f"sha256:{each}"))
        if len(found) < len(names):
            wrong = names - {each.removeprefix("sha256:") for each in found}
            for each in wrong - self._told:
                logger.error("%s: revokes no key: a file's name must be 64 hex digits", each)
            self._told |= wrong
        return found


@dataclass(frozen=True, slots=True)
class RevokedKeys:
    """Hashes of keys that open nothing any more, for all gateways: of the cluster's store, to which
    `add` adds one, and of a folder that outlives the cluster. Each may raise."""

    fetch: Callable[[], frozenset[str]] = frozenset
    add: Callable[[str], None] = _nowhere
    folder: RevokedFolder | None = None


class LiveTenants:
    """`current` is always whole and valid: a source that cannot be used leaves the last good one in
    force and says why in `problem`; beside it whether controllers are `frozen`. Reading may take a
    while: call `refresh` from a thread. `priorities`, `auth`: the gateway's, which don't change
    while it runs. The first reading has nothing to fall back on, and raises SettingsErrors.
    `digest`: of all that is in force. `wall`: seconds since the epoch.
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
        self._refused: str | None = None  # why the newest tenants are not in force
        self._unheard: str | None = None  # why what is revoked cannot be had
        self._ended = frozenset[str]()  # the hashes of revoked keys that the tenants list
        self.digest = ""
        self._settings = TenantsSettings()
        self._hear(lambda: None)
        if self._unheard is not None:
            raise SettingsErrors([Mistake("revoked keys", 0, "", self._unheard)])
        self._seen = source.signature()
        self._read()

    @property
    def origin(self) -> str:
        """Where they are read, in words."""
        return self._source.origin

    @property
    def problem(self) -> str | None:
        return "; ".join(each for each in (self._refused, self._unheard) if each) or None

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
        began, before = self._clock(), self.current
        self._hear(lambda: self._take(self._settings))
        # Taken before it is read: a change in between is then seen next time.
        signature = self._source.signature()
        if self._unheard is None and signature is not None:
            self._found_at = began
        if signature is None or signature != self._seen:
            self._seen = signature
            try:
                self._read()
            except SettingsErrors as error:
                self._refused = str(error)
            else:
                self._refused = None
        return self.current is not before

    def _hear(self, take: Callable[[], None]) -> None:
        """Hear what is revoked, and `take` it before the next is asked, which may take long."""
        faults: list[str] = []
        for hear in (self._hear_folder, self._hear_store):
            known = self._revoked
            try:
                hear()
            except Exception as fault:  # whatever keeps it from answering
                faults.append(str(fault))
            if self._revoked != known:
                take()
        unheard = f"which keys are revoked cannot be had: {'; '.join(faults)}" if faults else None
        if unheard is not None and self._unheard is None:
            logger.error("%s; those that were stay revoked", unheard)
        self._unheard = unheard

    def _hear_folder(self) -> None:
        if self._revocations.folder is not None:
            self._revoked |= self._revocations.folder.hashes()

    def _hear_store(self) -> None:
        """Gives the store what it lacks, too: so the folder's last for as long as the cluster."""
        stored = self._revocations.fetch()
        self._revoked |= stored
        for each in self._ended - stored:
            self._revocations.add(each)

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
        return {**revoked_key(owner, key), "folder": self._revocations.folder is not None}

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
        self._ended = self._revoked.intersection(key.hash for _, _, key in loaded.all_keys())
        self.digest = audit.digest(tenants_text(loaded) + "".join(sorted(self._revoked)))
        self.current = tenants
