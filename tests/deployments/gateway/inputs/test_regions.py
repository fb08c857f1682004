"""What a table of shared memory regions lets a tenant register, read and write."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from deployments.contract.errors import BadRequest, NotFound, Overloaded
from deployments.gateway.http.protocols.tensors import Region, RegionOutput, RowTensor
from deployments.gateway.inputs import regions
from deployments.gateway.inputs.regions import MAX_REGIONS, RegionTable, RegisteredRegion

TENANTS = ("acme", "acme-b", "other")
SHM = Path("/dev/shm")


@pytest.fixture
def prefix() -> Iterator[str]:
    """Of this test's keys, but for the tenant."""
    found = f"hr-test-{os.getpid()}-"
    yield found
    for path in SHM.glob(f"{found}*"):
        path.unlink()


@pytest.fixture
def table(tmp_path: Path, prefix: str) -> RegionTable:
    return RegionTable(tmp_path / "regions", f"/{prefix}{{tenant}}-", 1 << 20)


def made(prefix: str, content: bytes = bytes(4096), tenant: str = "acme", name: str = "x") -> str:
    key = f"{prefix}{tenant}-{name}"
    (SHM / key).write_bytes(content)
    return key


def region(key: str, name: str = "r", offset: int = 0, size: int = 4096) -> RegisteredRegion:
    return RegisteredRegion(name, key, offset, size)


def add(table: RegionTable, key: str, tenant: str = "acme", **more: int) -> None:
    table.register(tenant, region(key, **more), TENANTS)  # type: ignore[arg-type]


def read(table: RegionTable, offset: int, size: int, tenant: str = "acme") -> bytes:
    return bytes(table.read(tenant, "Tensor 'x'", Region("r", offset, size), TENANTS))


def test_what_is_read_is_what_is_there_at_the_offsets(table: RegionTable, prefix: str) -> None:
    add(table, made(prefix, bytes(range(256))), offset=16, size=64)
    assert read(table, 4, 8) == bytes(range(20, 28))
    assert table.regions("acme") == [RegisteredRegion("r", f"{prefix}acme-x", 16, 64)]


@pytest.mark.parametrize(("offset", "size"), [(0, 65), (64, 1), (1, 64)])
def test_a_tensor_ends_within_its_region(
    table: RegionTable, prefix: str, offset: int, size: int
) -> None:
    add(table, made(prefix, bytes(256)), size=64)
    with pytest.raises(BadRequest, match=f"ends at {offset + size}; region 'r' has 64 bytes"):
        read(table, offset, size)


def test_a_gateway_that_starts_again_and_others_of_the_node_know_the_region(
    table: RegionTable, tmp_path: Path, prefix: str
) -> None:
    add(table, made(prefix, b"abcd"), size=4)
    other = RegionTable(tmp_path / "regions", f"{prefix}{{tenant}}-", 1 << 20)
    assert read(other, 1, 2) == b"bc"
    other.unregister("acme", "r")
    with pytest.raises(BadRequest, match="no shared memory region 'r'"):
        read(table, 0, 1)


def test_a_region_registered_again_is_the_same_and_another_of_its_name_is_refused(
    table: RegionTable, prefix: str
) -> None:
    key = made(prefix)
    add(table, key)
    add(table, f"/{key}")  # as C clients write it
    with pytest.raises(BadRequest, match="registered already"):
        add(table, key, size=8)


@pytest.mark.parametrize(
    "key",
    [
        "{prefix}other-x", "plasma-1", "{prefix}acme-../../../etc/passwd", "../{prefix}acme-x",
        "{prefix}acme-\x00", "", "/", "..", "triton_python_backend_shm_region_1",
        "//{prefix}acme-x", "{prefix}acme-b-x",
    ],
)  # fmt: skip
def test_a_key_that_is_not_the_tenants_own_is_refused(
    table: RegionTable, prefix: str, key: str
) -> None:
    made(prefix, tenant="other")
    made(prefix, tenant="acme-b")
    with pytest.raises(BadRequest, match="the key must be one name in /dev/shm that begins with"):
        add(table, key.format(prefix=prefix))


def test_tritons_own_regions_are_refused_whatever_the_prefix_is(tmp_path: Path) -> None:
    table = RegionTable(tmp_path, "triton_python_backend_shm_region_{tenant}", 1 << 20)
    with pytest.raises(BadRequest, match="the key must be"):
        add(table, "triton_python_backend_shm_region_acme1")


def test_a_tenant_declared_later_owns_what_begins_with_its_name(
    table: RegionTable, prefix: str
) -> None:
    key = made(prefix, tenant="acme-b")
    table.register("acme", region(key), ("acme",))
    with pytest.raises(BadRequest, match="the key must be"):
        read(table, 0, 1)
    assert bytes(table.read("acme", "t", Region("r", 0, 1), ("acme",))) == b"\0"


def test_names_are_each_tenants_own(table: RegionTable, prefix: str) -> None:
    add(table, made(prefix, b"mine"), size=4)
    add(table, made(prefix, b"yours", "other"), "other", size=5)
    assert (read(table, 0, 4), read(table, 0, 4, "other")) == (b"mine", b"your")
    table.unregister("other")
    assert [each.name for each in table.regions("acme")] == ["r"]
    assert table.regions("other") == []
    with pytest.raises(NotFound):
        table.regions("other", "r")


def links(where: Path, prefix: str) -> None:
    where.symlink_to(SHM / made(prefix, tenant="other"))


def second_name(where: Path, prefix: str) -> None:
    os.link(SHM / made(prefix, tenant="other"), where)


def a_fifo(where: Path, prefix: str) -> None:
    os.mkfifo(where)


def a_folder(where: Path, prefix: str) -> None:
    where.mkdir()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (links, "is a symbolic link"),
        (second_name, "is no plain file of one name"),
        (a_fifo, "is no plain file of one name"),
        (a_folder, "cannot be used"),
        (lambda *_: None, "does not exist"),
    ],
)
def test_only_a_plain_file_is_a_region(
    table: RegionTable, prefix: str, make: object, says: str
) -> None:
    where = SHM / f"{prefix}acme-x"
    make(where, prefix)  # type: ignore[operator]
    try:
        with pytest.raises(BadRequest, match=says):
            add(table, where.name)
    finally:
        if where.is_dir() and not where.is_symlink():
            where.rmdir()


def test_a_lease_of_another_process_makes_nobody_wait(table: RegionTable, prefix: str) -> None:
    key = made(prefix)
    with (SHM / key).open("r+b") as held:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        # The kernel tells the holder by this signal, which would end the process.
        fcntl.fcntl(held, 10, 28)  # F_SETSIG, SIGWINCH
        with pytest.raises(BadRequest, match="has a lease of another process"):
            add(table, key)


@pytest.mark.parametrize(("offset", "size"), [(0, 0), (-1, 4), (4096, 1), (4000, 97)])
def test_a_region_lies_in_its_file(table: RegionTable, prefix: str, offset: int, size: int) -> None:
    with pytest.raises(BadRequest, match="Region 'r'"):
        add(table, made(prefix), offset=offset, size=size)


@pytest.mark.parametrize("name", ["", "a\n", "x" * 129, "\x7f"])
def test_a_regions_name_is_short_and_printable(table: RegionTable, prefix: str, name: str) -> None:
    with pytest.raises(BadRequest, match="1 to 128 printable"):
        table.register("acme", region(made(prefix), name), TENANTS)


@pytest.mark.parametrize("name", ["../../r", ".", "a/b", "é" * 128, "%2e%2e"])
def test_any_other_name_is_a_name_and_no_path(
    table: RegionTable, tmp_path: Path, prefix: str, name: str
) -> None:
    table.register("acme", region(made(prefix), name), TENANTS)
    assert [each.name for each in table.regions("acme", name)] == [name]
    assert [path.name for path in tmp_path.iterdir()] == ["regions"]


def test_a_tenant_has_so_many_regions_and_bytes_at_most(table: RegionTable, prefix: str) -> None:
    key = made(prefix, bytes(1 << 20))
    for at in range(MAX_REGIONS):
        table.register("acme", region(key, str(at), size=16), TENANTS)
    with pytest.raises(BadRequest, match=f"has {MAX_REGIONS} regions"):
        add(table, key, size=16)
    table.unregister("acme", "0")
    with pytest.raises(BadRequest, match="of at most 1048576"):
        add(table, key, size=(1 << 20) - 63 * 16 + 1)
    add(table, key, size=(1 << 20) - 63 * 16)


def test_two_gateways_that_register_at_once_keep_the_bound(
    table: RegionTable, tmp_path: Path, prefix: str
) -> None:
    other = RegionTable(tmp_path / "regions", f"{prefix}{{tenant}}-", 1 << 20)
    key, refused = made(prefix), []

    def many(of: RegionTable, name: str) -> None:
        for at in range(MAX_REGIONS):
            try:
                of.register("acme", region(key, f"{name}{at}", size=1), TENANTS)
            except BadRequest as error:
                refused.append(error)

    threads = [threading.Thread(target=many, args=pair) for pair in ((table, "a"), (other, "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(table.regions("acme")) == MAX_REGIONS == len(refused)


def test_a_lock_that_is_held_refuses_after_a_while(
    table: RegionTable, tmp_path: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "_LOCK_S", 0.01)
    key = made(prefix)
    add(table, key)
    lock = os.open(tmp_path / "regions" / "acme", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(Overloaded, match="locked"):
        table.register("acme", region(key, "s"), TENANTS)
    assert read(table, 0, 1) == b"\0"  # whoever reads takes no lock
    os.close(lock)


@pytest.mark.parametrize("left", [0, 100])
def test_a_file_that_was_truncated_is_told_and_ends_nothing(
    table: RegionTable, prefix: str, left: int
) -> None:
    key = made(prefix)
    add(table, key)
    os.truncate(SHM / key, left)
    with pytest.raises(BadRequest, match="was truncated or replaced while it was in use"):
        read(table, 0, 4096)


def test_a_file_that_shrinks_while_it_is_read_is_told(
    table: RegionTable, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = made(prefix)
    add(table, key)
    real = os.preadv

    def shrinks(file: int, buffers: list[memoryview], offset: int) -> int:
        os.truncate(SHM / key, 1000)
        return real(file, buffers, offset)

    monkeypatch.setattr(os, "preadv", shrinks)
    with pytest.raises(BadRequest, match="was truncated"):
        read(table, 0, 4096)


def rows(count: int, width: int = 3) -> RowTensor:
    data = np.arange(count * width, dtype=np.int32).reshape(count, width)
    return RowTensor("y", "INT32", list(data), (width,))


def output(table: RegionTable, offset: int, size: int) -> RegionOutput:
    found = RegionOutput("Output 'y'", Region("r", offset, size))
    table.check_output("acme", found, TENANTS)
    return found


@pytest.mark.parametrize("count", [1, 2, 1024, 1025, 3000])
def test_an_output_is_written_where_it_belongs_and_nothing_beside(
    table: RegionTable, prefix: str, count: int
) -> None:
    size = count * 12
    key = made(prefix, b"\xee" * (size + 64))
    add(table, key, offset=16, size=size + 48)
    place = output(table, 8, size + 4)
    table.write(place, rows(count))
    content = (SHM / key).read_bytes()
    assert content[:24] == b"\xee" * 24
    assert content[24 : 24 + size] == np.arange(count * 3, dtype=np.int32).tobytes()
    assert content[24 + size :] == b"\xee" * (40)
    assert place.size == size


def test_texts_and_ragged_rows_are_written_as_triton_reads_them(
    table: RegionTable, prefix: str
) -> None:
    key = made(prefix)
    add(table, key)
    texts = RowTensor("y", "BYTES", [np.array([b"ab"], object), np.array([b""], object)], (1,))
    ragged = RowTensor("y", "UINT8", [np.array([1], np.uint8), np.array([2, 3], np.uint8)], (2,))
    table.write(output(table, 0, 100), texts)
    table.write(output(table, 100, 4), ragged)
    content = (SHM / key).read_bytes()
    assert content[:10] == b"\x02\0\0\0ab\0\0\0\0"
    assert content[100:104] == b"\x01\0\x02\x03"


def test_an_output_that_is_larger_than_its_place_is_not_written(
    table: RegionTable, prefix: str
) -> None:
    key = made(prefix)
    add(table, key)
    with pytest.raises(BadRequest, match=r"Output 'y' has 24 bytes of shape \[2, 3\]"):
        table.write(output(table, 0, 23), rows(2))
    assert (SHM / key).read_bytes() == bytes(4096)


def test_a_file_that_was_replaced_or_truncated_meanwhile_gets_no_output(
    table: RegionTable, prefix: str
) -> None:
    key = made(prefix)
    add(table, key)
    place = output(table, 0, 24)
    os.truncate(SHM / key, 23)
    with pytest.raises(BadRequest, match="truncated or replaced"):
        table.write(place, rows(2))
    assert (SHM / key).stat().st_size == 23
    held = (SHM / key).open("rb")  # so that its inode is not given again
    (SHM / key).unlink()
    made(prefix)
    with held, pytest.raises(BadRequest, match="truncated or replaced"):
        table.write(place, rows(2))
    assert (SHM / key).read_bytes() == bytes(4096)


def test_an_unregistration_hurts_nothing_under_way(table: RegionTable, prefix: str) -> None:
    key = made(prefix)
    add(table, key)
    place = output(table, 0, 24)
    table.unregister("acme", "r")
    table.write(place, rows(2))
    assert (SHM / key).read_bytes()[:24] == np.arange(6, dtype=np.int32).tobytes()


@pytest.mark.slow
def test_a_thousand_registrations_beside_reads_leave_no_descriptor(
    table: RegionTable, prefix: str
) -> None:
    key, done, told = made(prefix), threading.Event(), set()
    before = len(os.listdir("/proc/self/fd"))

    def reads() -> None:
        while not done.is_set():
            try:
                told.add(read(table, 0, 4096))
            except BadRequest as error:
                told.add(error.message)

    threads = [threading.Thread(target=reads) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(1000):
        add(table, key)
        table.unregister("acme", "r")
    done.set()
    for thread in threads:
        thread.join()
    assert told <= {bytes(4096), "Tensor 'x': no shared memory region 'r' is registered"}
    assert len(os.listdir("/proc/self/fd")) == before
    assert list(table._folder.glob("*/*")) == []


def test_without_descriptors_it_is_overload_and_no_fault_of_the_callers(
    table: RegionTable, prefix: str
) -> None:
    add(table, made(prefix))
    found = region(f"{prefix}acme-x")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with contextlib.ExitStack() as stack, pytest.raises(Overloaded) as told:
            stack.enter_context(regions._opened(found))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert told.value.retry_after_s == 1.0
