"""May this request be worked on, after gateways have ended while they worked on requests?

A gateway notes what it works on (`RequestJournal`). What a gateway had when it ended is suspect:
here it is parsed, tokenised and encoded while no other suspect is. One that a second gateway ends
with while it runs so, and nothing else beside it, is refused, by every gateway, as long as an input
that ends replicas would be. Where something new ran beside it, that may have been the cause, so
that a third gateway has to end with it: who sends what ends gateways, each time with other bytes,
has nobody else's request refused.
One that a gateway has answered or refused is suspect no more. So a gateway that is killed with a
hundred requests delays them when they come again, and has none refused.

Requests are known by their path and body, whoever sends them. For the event loop's thread alone.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import mmap
import os
import select
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from deployments.contract.description import CrashTerms
from deployments.gateway.queues.lost_replicas import PoisonTracker
from deployments.gateway.queues.suspect_permits import Permit, SuspectPermits

_KEY_BYTES = 16
_HEAD = struct.Struct("<16sI44x")  # the format's name, the owner's process id
_MAGIC = b"headrace-notes-1"
_SLOT = 1 + _KEY_BYTES  # how the request runs, and its key
_PAUSED, _BESIDE, _ALONE = range(3)  # how: a paused one is not worked on
_SUFFIX = ".requests"
_WHOLE_BYTES = 4096  # of a longer body, its ends and every so many bytes are hashed
_END_BYTES = 1024
NO_SLOT = -1


def key_of(path: str, body: bytes | memoryview) -> bytes:
    """What a request is known by, the same at every gateway. Of a body of more than 4 KiB 4 KiB
    are looked at, evenly spread: hashing all of it would take as long as parsing it."""
    digest = hashlib.blake2b(path.encode(), digest_size=_KEY_BYTES)
    if len(body) <= _WHOLE_BYTES:
        digest.update(body)
        return digest.digest()
    digest.update(b"\n%d\n" % len(body))
    digest.update(body[:_END_BYTES])
    digest.update(body[-_END_BYTES:])
    digest.update(bytes(body[:: -(-len(body) // (_WHOLE_BYTES - 2 * _END_BYTES))]))
    return digest.digest()


class Note(NamedTuple):
    """A request that a gateway was working on. `alone`: no other suspect was beside it."""

    key: bytes
    alone: bool


class RequestJournal:
    """This gateway's own notes. Raises OSError where the folder cannot be used.

    Each gateway notes in a file of its own, for the other gateways of its node, the requests that
    it is parsing, tokenising, decoding or encoding. The file is mapped into memory, so a note costs
    0.1 us and outlives SIGKILL. A lock tells whether its owner lives; the kernel gives it back at
    any end. Others hear of an end by a pidfd, at once. A gateway that ends in order removes its
    file, so nothing that it had is suspect.

    Nothing is waited for and nothing is written to a disk but what the kernel writes back. On a
    node where the folder cannot be used, or that is no Linux, gateways go on without. For the event
    loop's thread alone. Source: flock(2), pidfd_open(2), posix_fallocate(3).
    """

    def __init__(self, folder: Path, name: str, slots: int) -> None:
        if sys.platform != "linux":
            raise OSError("needs Linux")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = folder / f"{name}{_SUFFIX}"
        size = _HEAD.size + slots * _SLOT
        new = self._path.with_suffix(".new")
        self._file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        # Before it has its name: who finds it without its lock takes its owner for dead.
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.posix_fallocate(self._file, 0, size)  # or a full disk would end us at a note (SIGBUS)
        self._notes = mmap.mmap(self._file, size)
        self._notes[: _HEAD.size] = _HEAD.pack(_MAGIC, os.getpid())
        os.replace(new, self._path)
        self._free = [_HEAD.size + i * _SLOT for i in range(slots)]

    def note(self, key: bytes, *, alone: bool) -> int:
        """Where the note stands; `NO_SLOT`: there was no room."""
        if not self._free:
            return NO_SLOT
        at = self._free.pop()
        self._notes[at + 1 : at + _SLOT] = key
        self._notes[at] = _ALONE if alone else _BESIDE
        return at

    def pause(self, at: int) -> None:
        """The note does not count, and keeps its place."""
        if at != NO_SLOT:
            self._notes[at] = _PAUSED

    def resume(self, at: int, *, alone: bool) -> None:
        if at != NO_SLOT:
            self._notes[at] = _ALONE if alone else _BESIDE

    def clear(self, at: int) -> None:
        if at != NO_SLOT:
            self._notes[at] = _PAUSED
            self._free.append(at)

    def close(self) -> None:
        """This gateway ends in order: what it still has is not suspect, and may be noted on."""
        self._path.unlink(missing_ok=True)
        os.close(self._file)


@dataclass(slots=True)
class _Sibling:
    """Another gateway of this node. `handle`: its pidfd."""

    path: Path
    file: int
    handle: int


@dataclass(slots=True)
class Siblings:
    """The other gateways of this node. `on_end` is called once for each that has ended without
    closing its journal, with its name and its notes."""

    folder: Path
    own: str  # this gateway's name
    on_end: Callable[[str, Sequence[Note]], None]
    _living: dict[str, _Sibling] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)
    _poll: select.poll = field(default_factory=select.poll)

    def start(self) -> None:
        """Take in what gateways before this one have left, and remove it."""
        self.look()
        for name in self._ended:
            (self.folder / f"{name}{_SUFFIX}").unlink(missing_ok=True)

    def look(self) -> None:
        """Find gateways that are new."""
        for name, path in self._files():
            if name != self.own and name not in self._living and name not in self._ended:
                with suppress(OSError):
                    self._meet(name, path)

    def check(self) -> None:
        """Notice at once who has ended: HAProxy may be quicker than the loop. Takes 1 us."""
        if self._living and (found := self._poll.poll(0)):
            ended = {handle for handle, _ in found}
            for name, each in list(self._living.items()):
                if each.handle in ended:
                    self._has_ended(name)

    def close(self) -> None:
        for name in list(self._living):
            os.close(self._forget(name).file)

    def _files(self) -> Iterator[tuple[str, Path]]:
        with suppress(FileNotFoundError):
            for path in self.folder.glob(f"*{_SUFFIX}"):
                yield path.name.removesuffix(_SUFFIX), path

    def _meet(self, name: str, path: Path) -> None:
        file = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            self._follow(name, path, file)
            return
        self._read(name, file)

    def _follow(self, name: str, path: Path, file: int) -> None:
        """It lives."""
        try:
            _, pid = _HEAD.unpack(os.pread(file, _HEAD.size, 0))
            handle = os.pidfd_open(pid)
        except (struct.error, OSError):  # it ends just now, or is of another pid namespace
            os.close(file)
            return
        self._living[name] = _Sibling(path, file, handle)
        self._poll.register(handle, select.POLLIN)
        asyncio.get_running_loop().add_reader(handle, self._has_ended, name)

    def _has_ended(self, name: str) -> None:
        if name in self._living:
            each = self._forget(name)
            # Without its file it ended in order, or a new gateway has told of it already.
            if each.path.exists():
                self._read(name, each.file)
            else:
                os.close(each.file)

    def _forget(self, name: str) -> _Sibling:
        each = self._living.pop(name)
        asyncio.get_running_loop().remove_reader(each.handle)
        self._poll.unregister(each.handle)
        os.close(each.handle)
        return each

    def _read(self, name: str, file: int) -> None:
        self._ended.add(name)
        content = os.pread(file, os.fstat(file).st_size, 0)
        os.close(file)
        if content.startswith(_MAGIC):
            self.on_end(name, list(_notes(content)))


def _notes(content: bytes) -> Iterator[Note]:
    for at in range(_HEAD.size, len(content) - _SLOT + 1, _SLOT):
        how, key = content[at], content[at + 1 : at + _SLOT]
        if how in (_BESIDE, _ALONE):
            yield Note(key, how == _ALONE)


TERMS = CrashTerms(refuse_s=600, tenant_budget=0, hold_s=1.0)
"""As of replicas. A suspect waits for its turn for `hold_s` at most: a turn takes milliseconds."""
_SURE_GATEWAYS = 3  # of which each ended with the same request
_TOLD_S = 0.05
"""HAProxy sends a request on as soon as a gateway's sockets are closed, which on a busy machine may
be milliseconds before the kernel tells of its end: a suspect that just ended one waits so long."""
logger = logging.getLogger("headrace.gateway")


class SuspectedRequests:
    """What this gateway works on, and what it knows of gateways that have ended."""

    def __init__(self) -> None:
        self.records = PoisonTracker(TERMS, "gateways")
        self.permits = SuspectPermits()
        self.journal: RequestJournal | None = None
        self._siblings: Siblings | None = None

    def watch(self, folder: Path, name: str, slots: int) -> None:
        """Note requests in this folder, and follow the other gateways that do. `slots`: requests
        at once. Without a folder that can be used, nothing is noted."""
        try:
            self.journal = RequestJournal(folder, name, slots)
            self._siblings = Siblings(folder, name, self.gateway_ended)
            self._siblings.start()
        except OSError as error:
            logger.warning("what ends gateways cannot be told: %s: %s", folder, error)

    def look(self) -> None:
        """Find gateways of this node that are new."""
        if self._siblings is not None:
            self._siblings.look()

    def close(self) -> None:
        if self._siblings is not None:
            self._siblings.close()
        if self.journal is not None:
            journal, self.journal = self.journal, None
            journal.close()

    def begin(self, path: str, body: bytes | memoryview) -> Work | None:
        """A request is worked on from now on; None: nothing is noted here. If it `is_suspect`, it
        must `take_turn` first. Raises RowQuarantined."""
        if self.journal is None:
            return None
        if self._siblings is not None:
            self._siblings.check()
        key = key_of(path, body)
        if self.records and self.records.check([key], "", monotonic()):
            return Work(self, self.journal, key, NO_SLOT, suspect=True)
        return Work(self, self.journal, key, self.journal.note(key, alone=False))

    def gateway_ended(self, name: str, notes: Sequence[Note]) -> None:
        """Another gateway has ended while it worked on these."""
        now = monotonic()
        for key, alone in notes:
            lost = self.records.note(key, "", name, now)
            # It ran alone because another gateway had ended with it before.
            sure = alone and (len(notes) == 1 or len(lost) >= _SURE_GATEWAYS)
            if sure and not self.records.is_quarantined(key):
                self.records.quarantine(key, "", now)
                logger.error(
                    "gateway %s is not the first that has ended with request %s; such requests "
                    "are refused for %g s", name, key.hex(), TERMS.refuse_s,
                )  # fmt: skip
        logger.warning("gateway %s has ended while it worked on %d requests", name, len(notes))


class Work:
    """One request that this gateway works on, but for the time that it waits in a queue."""

    __slots__ = ("_at", "_journal", "_key", "_paused", "_permit", "_suspected", "is_suspect")

    def __init__(
        self,
        suspected: SuspectedRequests,
        journal: RequestJournal,
        key: bytes,
        at: int,
        *,
        suspect: bool = False,
    ) -> None:
        """`at`: where it is noted."""
        self.is_suspect = suspect
        self._suspected, self._journal, self._key = suspected, journal, key
        self._at, self._paused = at, False
        self._permit: Permit | None = None

    async def take_turn(self, tenant: str) -> None:
        """Of a suspect: wait until no other one is worked on, then go on. Raises RowQuarantined for
        what has become known meanwhile."""
        await asyncio.sleep(_TOLD_S)
        permits = self._suspected.permits
        self._permit = permit = await permits.acquire(tenant, TERMS.hold_s)
        self._suspected.records.check([self._key], "", monotonic())
        self._go_on(alone=permits.holds(permit))

    def go_on(self) -> None:
        """It is worked on again, after it has waited in a queue."""
        self._go_on(alone=False)

    def pause(self) -> None:
        """It waits in a queue: nothing that happens here is its doing."""
        self._journal.pause(self._at)
        self._paused = True
        if self._permit is not None:
            self._permit.release()
            self._permit = None

    def end(self, *, answered: bool) -> None:
        """`answered`: or refused for what it is."""
        self.pause()
        self._journal.clear(self._at)
        if answered and self.is_suspect:
            self._suspected.records.release(self._key)

    def _go_on(self, *, alone: bool) -> None:
        if self._at == NO_SLOT:
            self._at = self._journal.note(self._key, alone=alone)
        elif self._paused:
            self._journal.resume(self._at, alone=alone)
        self._paused = False
