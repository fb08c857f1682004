"""A file comes whole and right from a server or a store, or not at all and with a reason."""

from __future__ import annotations

import errno
import hashlib
import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import fsspec
import pytest
from file_server import FileServer, serving

from deployments.replica.artifacts import fetch
from deployments.replica.artifacts.fetch import SourceFetch
from deployments.replica.artifacts.local_model import local_file
from deployments.settings import remote_source
from deployments.settings.remote_source import SourceError

CONTENT = bytes(range(256)) * 4096  # 1 MiB
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server():
    with serving(FileServer(CONTENT)) as each:
        yield each


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NETRC", raising=False)


class Fetching:
    """`waited`: seconds it would have slept; `told`: shares."""

    def __init__(self, server: FileServer, cache: Path, digest: str = DIGEST) -> None:
        self.waited: list[float] = []
        self.told: list[float] = []
        remote = remote_source.parse(f"{server.url()}?token=secret#sha256={digest}")
        self._fetch = SourceFetch(remote, cache, self.told.append, sleep=self.waited.append)

    def __call__(self) -> bytes:
        with self._fetch.verified() as path:
            assert path.name == "model.onnx"
            return path.read_bytes()


def test_a_file_comes_whole_and_its_progress_rises(server, tmp_path):
    fetching = Fetching(server, tmp_path)
    assert fetching() == CONTENT
    assert fetching.told == sorted(fetching.told)
    assert (fetching.told[0], fetching.told[-1]) == (0.0, 1.0)
    assert 3 < len(fetching.told) <= 102
    assert not list((tmp_path / "downloads").iterdir())


def test_cuts_are_gone_on_from_where_they_were(server, tmp_path):
    server.cuts = [100_000, 1, 700_000]
    fetching = Fetching(server, tmp_path)
    assert fetching() == CONTENT
    assert server.asked == ["", "bytes=100000-", "bytes=100001-", "bytes=800001-"]
    assert fetching.waited == [1.0, 1.0, 1.0]


@pytest.mark.slow
def test_a_server_that_falls_silent_is_left_and_gone_on_with(server, tmp_path, monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(fetch, "SILENCE_S", 0.1)
    server.cuts, server.at_cut = [300_000], lambda: over.wait(60)
    fetching = Fetching(server, tmp_path)
    assert fetching() == CONTENT
    over.set()
    assert server.asked == ["", "bytes=300000-"]


def test_a_file_of_unknown_length_is_taken_as_it_ends(server, tmp_path):
    server.says_size = False
    assert Fetching(server, tmp_path)() == CONTENT


def test_a_later_process_goes_on_where_a_dead_one_was(server, tmp_path):
    class Killed(BaseException):
        pass

    server.cuts = [300_000]
    dying = Fetching(server, tmp_path)

    def die(_: float) -> None:
        raise Killed

    dying._fetch._sleep = die
    with pytest.raises(Killed):
        dying()
    assert Fetching(server, tmp_path)() == CONTENT
    assert server.asked == ["", "bytes=300000-"]


def test_a_server_without_ranges_is_read_from_the_start_again(server, tmp_path):
    server.ranges = False
    server.cuts = [400_000]
    assert Fetching(server, tmp_path)() == CONTENT
    assert server.asked == ["", "bytes=400000-"]


def test_wrong_bytes_are_refused_and_thrown_away(server, tmp_path):
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(SourceError) as refused:
        Fetching(server, tmp_path)()
    found = hashlib.sha256(server.content).hexdigest()
    assert f"its SHA-256 is {found}, not {DIGEST}" in str(refused.value)
    assert "secret" not in str(refused.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(server.asked) == 1


def test_a_file_that_changed_between_two_tries_is_fetched_once_more(server, tmp_path):
    server.cuts = [500_000]
    fetching = Fetching(server, tmp_path)
    server.content = b"old " * (len(CONTENT) // 4)

    def change(_: float) -> None:
        server.content = CONTENT

    fetching._fetch._sleep = change
    assert fetching() == CONTENT
    assert server.asked == ["", "bytes=500000-", ""]


def test_a_file_that_became_shorter_is_fetched_from_the_start(server, tmp_path):
    server.cuts = [900_000]
    fetching = Fetching(server, tmp_path, hashlib.sha256(b"short").hexdigest())

    def change(_: float) -> None:
        server.content = b"short"

    fetching._fetch._sleep = change
    assert fetching() == b"short"


def test_a_whole_file_that_was_never_verified_is_not_fetched_again(server, tmp_path):
    server.says_size = False
    first = Fetching(server, tmp_path)
    with pytest.raises(RuntimeError), first._fetch.verified():
        raise RuntimeError("killed before it was moved")
    assert Fetching(server, tmp_path)() == CONTENT
    assert server.asked == ["", f"bytes={len(CONTENT)}-"]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_busy_server_is_asked_again(server, tmp_path, status):
    server.statuses = [status, status]
    fetching = Fetching(server, tmp_path)
    assert fetching() == CONTENT
    assert fetching.waited == [1.0, 2.0]


@pytest.mark.parametrize(("asked", "waited"), [("7", 7.0), ("86400", 60.0), ("Thu, 1 Jan", 1.0)])
def test_a_server_says_when_to_come_again_within_reason(server, tmp_path, asked, waited):
    server.statuses = [503]
    server.headers = {"retry-after": asked}
    fetching = Fetching(server, tmp_path)
    assert fetching() == CONTENT
    assert fetching.waited == [waited]


def test_tries_that_bring_nothing_come_to_an_end(server, tmp_path):
    server.statuses = [503] * 20
    fetching = Fetching(server, tmp_path)
    with pytest.raises(SourceError, match="it answers 503 Service Unavailable"):
        fetching()
    assert fetching.waited == list(fetch.PAUSES_S)


def test_a_try_that_brought_something_begins_the_count_anew(server, tmp_path):
    server.statuses = [503] * 5 + [None] + [503] * 5
    server.cuts = [10]
    fetching = Fetching(server, tmp_path)
    assert fetching() == CONTENT
    assert len(fetching.waited) == 11


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_what_will_not_come_is_not_asked_for_again(server, tmp_path, status):
    server.statuses = [status]
    with pytest.raises(SourceError, match=f"model.onnx cannot be fetched: it answers {status}"):
        Fetching(server, tmp_path)()
    assert len(server.asked) == 1


def test_nobody_listening_is_an_interruption(tmp_path):
    with serving(FileServer()) as gone:
        pass
    fetching = Fetching(gone, tmp_path)
    with pytest.raises(SourceError, match="ConnectError"):
        fetching()
    assert fetching.waited == list(fetch.PAUSES_S)


def test_redirects_are_followed(server, tmp_path):
    server.statuses = [302]
    server.headers = {"location": server.url("elsewhere")}
    assert Fetching(server, tmp_path)() == CONTENT


def test_a_file_that_does_not_fit_is_refused_before_it_is_read(server, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(
        fetch.shutil, "disk_usage", lambda _: usage(0, 0, fetch.SPARE_BYTES + len(CONTENT) - 1)
    )
    with pytest.raises(
        SourceError, match=r"1,048,576 bytes do not fit on the disk of .* 1,048,575"
    ):
        Fetching(server, tmp_path)()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]


def test_a_full_disk_says_so(server, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch, "_write", full)
    with pytest.raises(SourceError, match=r"the disk of .* is full; free some"):
        Fetching(server, tmp_path)()


def test_a_name_and_password_come_from_the_nodes_netrc(server, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    (home / ".netrc").write_text("machine 127.0.0.1 login me password word\n")
    (home / ".netrc").chmod(0o600)
    seen: list[str | None] = []
    from deployments.replica.artifacts.fetch import HttpReader

    monkeypatch.setattr(
        HttpReader,
        "_opened",
        lambda self, answer, at, inner=HttpReader._opened: (
            seen.append(answer.request.headers.get("authorization")),
            inner(self, answer, at),
        )[1],
    )
    assert Fetching(server, tmp_path / "cache")() == CONTENT
    assert seen == ["Basic bWU6d29yZA=="]


def test_a_source_is_kept_and_not_asked_for_again(server, tmp_path):
    source = f"{server.url('a%20b/minilm.onnx')}#sha256={DIGEST}"
    told: list[tuple[str, float]] = []
    path = local_file(source, tmp_path, lambda *each: told.append(each))
    assert path.name == "minilm.onnx"
    assert path.read_bytes() == CONTENT
    assert {phase for phase, _ in told} == {"staging"}
    assert local_file(source, tmp_path, lambda *_: None) == path
    assert len(server.asked) == 1


STORED = bytes(range(256)) * 400
STORED_DIGEST = hashlib.sha256(STORED).hexdigest()


@pytest.fixture
def store(monkeypatch):
    """fsspec's store in memory, with one object, read in pieces of 10,000 bytes."""
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/models/m.onnx", STORED)
    monkeypatch.setattr(fetch, "_PIECE_BYTES", 10_000)
    yield memory
    memory.rm_file("/models/m.onnx")


def fetched(cache: Path, waited: list[float]) -> bytes:
    remote = remote_source.parse(f"memory://models/m.onnx#sha256={STORED_DIGEST}")
    with SourceFetch(remote, cache, lambda _: None, sleep=waited.append).verified() as path:
        return path.read_bytes()


class Failing:
    """An open file whose third read fails, each time it is opened anew."""

    def __init__(self, file: Any, fault: Exception) -> None:
        self._file = file
        self._fault = fault
        self._reads = 0

    def read(self, size: int) -> bytes:
        self._reads += 1
        if self._reads == 3:
            raise self._fault
        return bytes(self._file.read(size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("fault", [TimeoutError("slow"), ConnectionError("cut"), ValueError("odd")])
def test_reads_that_fail_are_gone_on_from_where_they_were(store, tmp_path, monkeypatch, fault):
    opened, read = 0, type(store).open

    def failing(self: Any, path: str, *args: Any, **kwargs: Any) -> Failing:
        nonlocal opened
        opened += 1
        return Failing(read(self, path, *args, **kwargs), fault)

    monkeypatch.setattr(type(store), "open", failing)
    waited: list[float] = []
    assert fetched(tmp_path, waited) == STORED
    assert (opened, waited) == (6, [1.0] * 5)  # 102,400 bytes, 20,000 each time


def test_a_store_that_stays_away_comes_to_an_end(store, tmp_path, monkeypatch):
    def away(*_: object, **__: object) -> None:
        raise OSError("the store is away")

    monkeypatch.setattr(type(store), "info", away)
    monkeypatch.setattr(type(store), "isfile", away)
    waited: list[float] = []
    with pytest.raises(SourceError, match=r"memory://models/m.onnx cannot be fetched: OSError"):
        fetched(tmp_path, waited)
    assert waited == list(fetch.PAUSES_S)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (PermissionError("Access Denied"), "may not be read with the credentials that this node"),
        (FileNotFoundError("gone"), "is not there"),
        (ImportError("Install it"), "Install it"),
    ],
)
def test_a_no_is_believed_at_once(store, tmp_path, monkeypatch, fault, said):
    def refuse(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr(type(store), "open", refuse)
    waited: list[float] = []
    with pytest.raises(SourceError, match=said):
        fetched(tmp_path, waited)
    assert waited == []


def test_names_that_lead_out_of_the_folder_are_refused(store, tmp_path, monkeypatch):
    found = {"/models/../../out": {"size": 1}, "/models/a": {"size": 1}}
    monkeypatch.setattr(type(store), "find", lambda *_, **__: found)
    remote = remote_source.parse(f"memory://models/#sha256={STORED_DIGEST}")
    with (
        pytest.raises(SourceError, match="leads out of it"),
        SourceFetch(remote, tmp_path / "cache", lambda _: None).verified(),
    ):
        pass
    assert not list(tmp_path.rglob("out"))
