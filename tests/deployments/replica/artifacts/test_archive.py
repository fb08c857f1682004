"""An archive's files come out below the folder, or nothing of it is used."""

from __future__ import annotations

import copy
import gzip
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from deployments.replica.artifacts import archive
from deployments.settings.remote_source import SourceError

TARS = ("a.tar", "a.tar.gz", "a.tgz")


def tar(path: Path, *members: tuple[str, bytes] | tarfile.TarInfo) -> Path:
    mode = "w" if path.suffix == ".tar" else "w:gz"
    with tarfile.open(path, mode) as made:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                made.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size, info.mode = len(member[1]), 0o4777
                made.addfile(info, io.BytesIO(member[1]))
    return path


def packed(path: Path, *members: tuple[str, bytes]) -> Path:
    if path.suffix != ".zip":
        return tar(path, *members)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members:
            made.writestr(name, content)
    return path


def refused(file: Path, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        archive.unpack(file, file.parent / f"{file.name}.out")


def special(kind: bytes, name: str = "link", target: str = "/etc/passwd") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("name", [*TARS, "a.zip", "A.ZIP", "a.TAR.GZ"])
def test_files_come_out_with_plain_modes(tmp_path, name):
    folder = tmp_path / "out"
    file = packed(tmp_path / name.lower(), ("m/config.json", b"{}"), ("m/w/x.safetensors", b"1"))
    file.rename(tmp_path / name)
    archive.unpack(tmp_path / name, folder)
    assert (folder / "m/config.json").read_bytes() == b"{}"
    assert (folder / "m/w/x.safetensors").read_bytes() == b"1"
    assert not (folder / "m/config.json").stat().st_mode & (stat.S_ISUID | stat.S_IWOTH)


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "zip"])
@pytest.mark.parametrize("name", ["../out.txt", "/tmp/out.txt", "a/../../out.txt", "a\\..\\b"])
def test_no_entry_leaves_the_folder(tmp_path, ending, name):
    inner = tmp_path / "inner"
    inner.mkdir()
    file = packed(inner / f"a.{ending}", ("ok", b"1"), (name, b"out"))
    with pytest.raises(SourceError, match="leads out"):
        archive.unpack(file, inner / "folder")
    assert not list(tmp_path.rglob("out.txt"))


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_links_and_devices_are_refused(tmp_path, kind):
    file = tar(tmp_path / "a.tar.gz", special(kind))
    refused(file, "link is a link or a device")
    assert not list((tmp_path / "a.tar.gz.out").iterdir())


def test_a_link_in_a_zip_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as made:
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        made.writestr(info, "/etc/passwd")
    refused(tmp_path / "a.zip", "link is a link or a device")


@pytest.mark.parametrize("ending", ["tar.gz", "zip"])
@pytest.mark.parametrize("names", [("a", "a"), ("a", "a/b"), ("a/b", "a")])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_entries_of_one_name_are_refused(tmp_path, ending, names):
    file = packed(tmp_path / f"a.{ending}", *((name, b"x") for name in names))
    refused(file, "twice")


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
@pytest.mark.parametrize(("room", "fits"), [(3_000_000, True), (2_999_999, False)])
def test_what_comes_out_is_bounded_by_the_disk(tmp_path, monkeypatch, name, room, fits):
    file = packed(tmp_path / name, ("zeros", bytes(1_500_000)), ("more", bytes(1_500_000)))
    monkeypatch.setattr(archive, "free_bytes", lambda _: room)
    if fits:
        archive.unpack(file, tmp_path / "folder")
        return
    refused(file, "does not fit on the disk")


def test_so_many_entries_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_ENTRIES", 2)
    file = packed(tmp_path / "a.tar", *((str(n), b"") for n in range(3)))
    refused(file, "more than 2 entries")


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.zip"])
def test_what_is_no_archive_is_refused(tmp_path, name):
    file = tmp_path / name
    file.write_bytes(b"<html>" * 500)
    refused(file, f"{name} cannot be unpacked")


def test_a_damaged_archive_is_refused(tmp_path):
    whole = packed(tmp_path / "a.tar.gz", ("big", bytes(range(256)) * 4000))
    whole.write_bytes(whole.read_bytes()[:-200])
    refused(whole, "cannot be unpacked")
    gzip.open(tmp_path / "b.tar.gz", "wb").close()
    refused(tmp_path / "b.tar.gz", "cannot be unpacked")


@pytest.mark.parametrize("length", range(2, 14))
def test_a_gzip_header_that_is_cut_off_is_refused(tmp_path, length):
    """With each of its parts said to follow: more fields, a name, a comment, a checksum."""
    file = tmp_path / "a.tar.gz"
    file.write_bytes(b"\x1f\x8b\x08\x1e\x00\x00\x00\x00\x00\xff\x02\x00ab"[:length])
    refused(file, "cannot be unpacked")


@pytest.mark.parametrize(
    ("name", "stem"),
    [("m.tar.gz", "m"), ("m.tgz", "m"), ("m.v1.zip", "m.v1"), (".zip", "unpacked")],
)
def test_the_folder_is_called_as_the_archive(name, stem):
    assert archive.stem(name) == stem


def test_a_zip_whose_entries_begin_before_it_is_refused(tmp_path):
    path = packed(tmp_path / "a.zip", ("f", b"x" * 100))
    content = path.read_bytes()
    at = content.rindex(b"PK\x05\x06") + 16  # where the list of entries begins
    begins = int.from_bytes(content[at : at + 4], "little")
    path.write_bytes(content[:at] + (begins + 500).to_bytes(4, "little") + content[at + 4 :])
    refused(path, r"a\.zip cannot be unpacked")


def test_an_entry_without_a_name_is_refused(tmp_path):
    nameless = zipfile.ZipInfo("a")
    nameless.filename = ""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as out:
        out.writestr(nameless, b"x")
    refused(tmp_path / "a.zip", "an entry without a name")


def test_a_name_that_no_disk_takes_is_refused(tmp_path):
    path = packed(tmp_path / "a.tar", ("n" * 300, b"x"))
    refused(path, "File name too long")


def header(kind: bytes, size: int, name: bytes = b"x") -> bytes:
    """A ustar header of 512 bytes."""
    fields = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + b"%011o\0" % size
    fields += b"%011o\0" % 0 + b" " * 8 + kind + b"\0" * 100 + b"ustar\x0000"
    fields = fields.ljust(512, b"\0")
    return fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]


def padded(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % 512)


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_long_headers_are_refused_before_they_are_read(tmp_path, kind):
    """A gigabyte of them is a few hundred kilobytes, packed."""
    file = tmp_path / "a.tar.gz"
    with gzip.open(file, "wb") as made:
        made.write(header(kind, 1 << 30) + bytes(1 << 20))
    refused(file, "more than 65536 bytes of headers")


def test_many_short_headers_before_one_entry_are_refused(tmp_path):
    one = header(b"x", 11) + padded(b"11 path=ab\n")
    (tmp_path / "a.tar").write_bytes(one * 1000)
    refused(tmp_path / "a.tar", "more than 65536 bytes of headers")


def test_all_headers_together_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_HEADS_BYTES", 5000)
    file = tar(tmp_path / "a.tar", *((f"f{n}", b"") for n in range(20)))
    refused(file, "more than 5000 bytes of headers")


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("long", [90, 150, 200])
def test_long_and_foreign_names_come_out_in_every_format(tmp_path, form, long):
    folder = "d" * (long - 60)
    name = f"{folder[:100]}/{folder[100:] or 'e'}/{'n' * 50}\u00e9"
    with tarfile.open(tmp_path / "a.tar", "w", format=form) as made:
        info = tarfile.TarInfo(name)
        info.size = 3
        made.addfile(info, io.BytesIO(b"abc"))
        made.addfile(special(tarfile.DIRTYPE, "empty"))
    archive.unpack(tmp_path / "a.tar", tmp_path / "out")
    assert (tmp_path / "out" / name).read_bytes() == b"abc"
    assert (tmp_path / "out" / "empty").is_dir()


@pytest.mark.parametrize("key", ["GNU.sparse.major", "GNU.sparse.map"])
def test_sparse_files_are_refused(tmp_path, key):
    info = tarfile.TarInfo("s")
    info.pax_headers = {key: "1"}
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as made:
        made.addfile(info)
    refused(tmp_path / "a.tar", "s is a sparse file")
    (tmp_path / "b.tar").write_bytes(header(b"S", 0) + bytes(1024))
    refused(tmp_path / "b.tar", "a sparse file")


@pytest.mark.parametrize(
    "records", [b"9 a", b"99 path=a\n", b"x path=a\n", b"8 path=a", b"0 a=b\n"]
)
def test_damaged_pax_records_are_refused(tmp_path, records):
    (tmp_path / "a.tar").write_bytes(header(b"x", len(records)) + padded(records) + header(b"0", 0))
    refused(tmp_path / "a.tar", "damaged")


def test_a_header_whose_sum_is_wrong_is_refused(tmp_path):
    bad = bytearray(header(b"0", 0))
    bad[0] ^= 1
    (tmp_path / "a.tar").write_bytes(bytes(bad) + bytes(1024))
    refused(tmp_path / "a.tar", "a header of the archive is damaged")


def test_zip_entries_that_share_their_bytes_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a", b"0" * 100_000)
        again = copy.copy(made.filelist[0])
        again.filename = "b"
        made.filelist.append(again)
    refused(tmp_path / "a.zip", "entries overlap")


def test_a_zips_list_of_entries_is_bounded(tmp_path, monkeypatch):
    file = packed(tmp_path / "a.zip", *((f"f{n}", b"") for n in range(100)))
    archive.unpack(file, tmp_path / "out")
    monkeypatch.setattr(archive, "MAX_LIST_BYTES", 1000)
    refused(file, "list of entries is larger than 1000 bytes")
