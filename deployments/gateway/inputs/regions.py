"""Which shared memory regions has each tenant registered, and what do they hold?

One file per region in a folder of this node, so its gateways share the table, and a gateway that
starts again finds it. A region is opened for one transfer and closed again: an unregistration
can't hurt what is under way, and no descriptor is kept. Contents are copied by preadv and pwritev,
never mapped: reading a mapping of a file that its owner has truncated would end the gateway
(SIGBUS), while a read comes back short. A key is one name in /dev/shm, and begins with its
tenant's prefix. Opening never waits and follows no link. All methods block: use a thread.
Source: Triton, "Shared-Memory Extension"; shm_overview(7), open(2), preadv(2).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from uuid import uuid4

import msgspec
import numpy as np

from deployments.contract.errors import SOON_S, BadRequest, NotFound, Overloaded
from deployments.gateway.http.protocols.tensors import Region, RegionOutput, RowTensor, pack
from deployments.gateway.http.protocols.triton import RegisteredRegion

logger = logging.getLogger("headrace.gateway")

MAX_REGIONS = 64  # of one tenant
_SHM = "/dev/shm"
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_KEY = re.compile(r"[!-.0-~]{1,255}")  # one name, no path
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,128}")
_TRITONS = "triton_python_backend_shm_region_"  # what its processes say to each other
_SUFFIX = ".region"
_ENTRY_BYTES = 8192
_IOV = 1024  # Linux' most buffers of one call
_LOCK_S, _PAUSE_S = 2.0, 0.005
_FULL = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_WHY = {
    errno.ENOENT: "does not exist",
    errno.ELOOP: "is a symbolic link",
    errno.EACCES: "may not be opened by the gateway; it must be the same user's, or writable to it",
    errno.EAGAIN: "has a lease of another process",
    errno.ENOSPC: "has no memory left",
}
FileId = tuple[int, int]


_entry = msgspec.json.Decoder(RegisteredRegion)


class RegionTable:
    """`folder`: of this node; is made. `prefix`: of keys, with `{tenant}`; `max_bytes`: that one
    tenant may have registered."""

    def __init__(self, folder: Path, prefix: str, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._prefix = prefix.removeprefix("/")
        # Of these tenants: by tenant, the prefixes of others that begin with its own.
        self._longer: tuple[Sequence[str], dict[str, tuple[str, ...]]] = (), {}

    def regions(self, tenant: str, name: str = "") -> list[RegisteredRegion]:
        """All of the tenant's, by name, or this one. Raises NotFound."""
        if name:
            found = self._read(self._file(tenant, name))
            if found is None:
                raise NotFound(f"no shared memory region '{name}' is registered")
            return [found]
        every = (self._read(path) for path in self._files(tenant))
        return sorted((each for each in every if each is not None), key=lambda each: each.name)

    def register(self, tenant: str, region: RegisteredRegion, tenants: Sequence[str]) -> None:
        """As it is already: no change. `tenants`: all there are. Raises BadRequest, and Overloaded
        where the table is locked for too long."""
        if not _NAME.fullmatch(region.name):
            raise BadRequest("a region's name must be 1 to 128 printable characters")
        region = msgspec.structs.replace(region, key=region.key.removeprefix("/"))
        self._check_key(tenant, region, tenants)
        if region.offset < 0 or region.byte_size < 1:
            raise BadRequest(
                f"Region '{region.name}': byte_size must be at least 1, and offset at least 0"
            )
        with _opened(region) as (_, size):
            if region.offset + region.byte_size > size:
                raise BadRequest(
                    f"Region '{region.name}' ends at {region.offset + region.byte_size}; "
                    f"{_SHM}/{region.key} has {size} bytes"
                )
        self._add(tenant, region)

    def unregister(self, tenant: str, name: str = "") -> None:
        """This region, or all of the tenant's; one that is not registered: no change."""
        for path in [self._file(tenant, name)] if name else self._files(tenant):
            Path(path).unlink(missing_ok=True)

    def check_output(self, tenant: str, output: RegionOutput, tenants: Sequence[str]) -> None:
        """That there is room for an output, before it is computed. Raises BadRequest."""
        region = self._placed(tenant, output.label, output.at, tenants)
        with _opened(region) as (file, size):
            _check_end(output.label, region, output.at, size)
            output.key, output.begins = region.key, region.offset + output.at.offset
            output.file = _id(file)

    def read(self, tenant: str, label: str, at: Region, tenants: Sequence[str]) -> memoryview:
        """A copy of what is there. Raises BadRequest, also where the file ends before."""
        region = self._placed(tenant, label, at, tenants)
        with _opened(region) as (file, size):
            _check_end(label, region, at, size)  # before memory is taken
            content = memoryview(np.empty(at.size, np.uint8).data).cast("B")
            begins, done = region.offset + at.offset, 0
            while done < at.size:
                got = os.preadv(file, [content[done:]], begins + done)
                if not got:
                    raise _truncated(label, region)
                done += got
        return content

    def write(self, output: RegionOutput, tensor: RowTensor) -> None:
        """The output into its place, which was checked; `output.size` is then known. Raises
        BadRequest where it does not fit, or the file is another one, or shorter, than it was."""
        size = tensor.packed_bytes
        if size > output.at.size:
            raise BadRequest(
                f"{output.label} has {size} bytes of shape {list(tensor.dense_shape)}; "
                f"shared_memory_byte_size is {output.at.size}",
                param="outputs",
            )
        region = RegisteredRegion(output.at.region, output.key, 0, output.begins + size)
        with _opened(region) as (file, there):
            if _id(file) != output.file or there < output.begins + size:
                raise _truncated(output.label, region)
            at = output.begins
            for buffers in _gathered(tensor):
                length = sum(map(len, buffers))
                if os.pwritev(file, buffers, at) != length:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                at += length
                # Writing behind the end of a file that was cut would make it whole again.
                if os.fstat(file).st_size < there:
                    raise _truncated(output.label, region)
        output.size = size

    def _placed(
        self, tenant: str, label: str, at: Region, tenants: Sequence[str]
    ) -> RegisteredRegion:
        region = self._read(self._file(tenant, at.region))
        if region is None:
            raise BadRequest(f"{label}: no shared memory region '{at.region}' is registered")
        if at.offset + at.size > region.byte_size:
            raise BadRequest(
                f"{label} ends at {at.offset + at.size}; region '{at.region}' has "
                f"{region.byte_size} bytes"
            )
        self._check_key(tenant, region, tenants)  # others' names may be new
        return region

    def _check_key(self, tenant: str, region: RegisteredRegion, tenants: Sequence[str]) -> None:
        key, prefix = region.key, self._prefix.format(tenant=tenant)
        own = key.startswith(prefix) and not key.startswith(self._others(tenant, tenants))
        if own and _KEY.fullmatch(key) and not key.startswith(_TRITONS):
            return
        raise BadRequest(
            f"Region '{region.name}': the key must be one name in {_SHM} that begins with "
            f"{prefix} (gateway.shared_memory.prefix)"
        )

    def _others(self, tenant: str, tenants: Sequence[str]) -> tuple[str, ...]:
        """Prefixes of others that begin as the tenant's own does: "a-" and "a-b-"."""
        of, known = self._longer  # read once: threads share it
        if of is not tenants:
            known = {}
            self._longer = tenants, known
        if tenant not in known:
            own = self._prefix.format(tenant=tenant)
            others = (self._prefix.format(tenant=each) for each in tenants if each != tenant)
            known[tenant] = tuple(each for each in others if each.startswith(own))
        return known[tenant]

    def _add(self, tenant: str, region: RegisteredRegion) -> None:
        path = Path(self._file(tenant, region.name))
        with self._locked(path.parent):
            known = {each.name: each for each in self.regions(tenant)}
            if region.name in known:
                if known[region.name] == region:
                    return
                raise BadRequest(f"shared memory region '{region.name}' is registered already")
            if len(known) >= MAX_REGIONS:
                raise BadRequest(f"this tenant has {MAX_REGIONS} regions, which is all it may")
            total = region.byte_size + sum(each.byte_size for each in known.values())
            if total > self._max_bytes:
                raise BadRequest(
                    f"this tenant's regions would have {total} bytes together, of at most "
                    f"{self._max_bytes} (gateway.shared_memory.max_bytes)"
                )
            # Whole once it has its name: nobody who reads takes the lock.
            new = path.with_name(uuid4().hex)
            try:
                with new.open("wb") as file:
                    file.write(msgspec.json.encode(region))
                    file.flush()
                    os.fsync(file.fileno())  # what has its name after a crash is whole
                os.replace(new, path)
            except OSError as fault:
                raise Overloaded(
                    f"the table of regions cannot be written: {fault.strerror}",
                    retry_after_s=SOON_S,
                ) from None
            finally:
                new.unlink(missing_ok=True)

    def _file(self, tenant: str, name: str) -> str:
        digest = blake2b(name.encode("utf-8", "replace"), digest_size=16).hexdigest()
        return f"{self._folder}/{tenant}/{digest}{_SUFFIX}"

    def _files(self, tenant: str) -> list[str]:
        return [str(path) for path in (self._folder / tenant).glob(f"*{_SUFFIX}")]

    def _read(self, path: str) -> RegisteredRegion | None:
        """Three system calls: pathlib would take twice as long as all of a small tensor's."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        try:
            return _entry.decode(os.read(file, _ENTRY_BYTES))
        except msgspec.DecodeError:
            logger.warning(
                "an entry of the table of regions is damaged, and is forgotten: %s", path
            )
            Path(path).unlink(missing_ok=True)
            return None
        finally:
            os.close(file)

    @contextlib.contextmanager
    def _locked(self, folder: Path) -> Iterator[None]:
        """Who registers checks the bounds alone. The kernel frees the lock of a gateway that
        ends."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            end = time.monotonic() + _LOCK_S
            while not _try_lock(lock):
                if time.monotonic() > end:
                    raise Overloaded("the table of regions is locked", retry_after_s=SOON_S)
                time.sleep(_PAUSE_S)
            yield
        finally:
            os.close(lock)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _opened(region: RegisteredRegion) -> Iterator[tuple[int, int]]:
    """The region's file and the file's size. Raises BadRequest for what is no plain file of one
    name, and for what the system refuses while it is open."""
    try:
        file = os.open(f"{_SHM}/{region.key}", _FLAGS)
        try:
            status = os.fstat(file)
            # A second name could be one that begins with another tenant's prefix.
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise _wrong(region, "is no plain file of one name")
            yield file, status.st_size
        finally:
            os.close(file)
    except OSError as error:
        if error.errno in _FULL:
            raise Overloaded(
                f"the gateway cannot open a region now: {error.strerror}", retry_after_s=SOON_S
            ) from None
        why = _WHY.get(error.errno or 0, f"cannot be used: {error.strerror}")
        raise _wrong(region, why) from None


def _wrong(region: RegisteredRegion, why: str) -> BadRequest:
    return BadRequest(f"Region '{region.name}': {_SHM}/{region.key} {why}")


def _truncated(label: str, region: RegisteredRegion) -> BadRequest:
    return BadRequest(f"{label}: {_SHM}/{region.key} was truncated or replaced while it was in use")


def _check_end(label: str, region: RegisteredRegion, at: Region, size: int) -> None:
    if region.offset + at.offset + at.size > size:
        raise _truncated(label, region)


def _id(file: int) -> FileId:
    status = os.fstat(file)
    return status.st_dev, status.st_ino


def _gathered(tensor: RowTensor) -> Iterator[list[memoryview]]:
    """The tensor's bytes, in as few calls' buffers as may be."""
    buffers: list[memoryview] = []
    for row in tensor.padded():
        buffers.append(memoryview(pack(tensor.datatype, row)))
        if len(buffers) == _IOV:
            yield buffers
            buffers = []
    if buffers:
        yield buffers
