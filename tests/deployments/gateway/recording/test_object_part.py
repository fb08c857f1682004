"""In an object store a recording is few objects, written again when the store was away, and joined
from anywhere."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from deployments.cli import main
from deployments.contract.description import Recording
from deployments.gateway.recording import part as module
from deployments.gateway.recording.part import Line, ObjectPart
from deployments.gateway.recording.recorder import Recorder
from deployments.gateway.rows import RowColumn, Rows
from loadtests.traffic.traces import read_trace
from runtimes import ragged_file

FOLDER = "memory://bucket/recorded/m"
BELOW = "/bucket/recorded/m/parts"


@pytest.fixture(autouse=True)
def store():
    memory = fsspec.filesystem("memory")
    yield memory
    if memory.exists("/bucket"):
        memory.rm("/bucket", recursive=True)


def lines(first: int, count: int) -> list[Line]:
    return [(f"{at:.6f}", 7, "acme") for at in range(first, first + count)]


def times(store: Any, name: str) -> list[float]:
    header, *rows = store.cat(f"{BELOW}/g1/{name}").decode().splitlines()
    assert header == "time,length,tenant"
    return [float(row.split(",")[0]) for row in rows]


def rows(*lengths: int) -> Rows:
    arrays = [np.arange(length) for length in lengths]
    columns = {"input_ids": RowColumn("INT64", arrays, [(length,) for length in lengths])}
    return Rows(len(lengths), lengths, columns)


def recorder_of(gateway: str, start: int = 100) -> Recorder:
    moments = iter(range(start, 10_000))
    recording = Recording(FOLDER, (8, 64), max_rows=100, max_bytes=1 << 20, max_requests=1000)
    return Recorder(recording, gateway, rng=random.Random(0), clock=lambda: float(next(moments)))


@pytest.mark.parametrize(
    ("counts", "objects"),
    [([1], [1]), ([2, 1], [3]), ([4], [4]), ([3, 2], [4, 1]), ([9], [4, 4, 1]), ([4, 4], [4, 4])],
)
def test_lines_fill_one_object_after_the_other(store, monkeypatch, counts, objects):
    monkeypatch.setattr(module, "SEGMENT_LINES", 4)
    part = ObjectPart(FOLDER, "g1")
    for count, before in zip(counts, [0, *counts], strict=False):
        part.append(lines(before, count))
    written = [
        times(store, name.rpartition("/")[2])
        for name in sorted(store.ls(f"{BELOW}/g1", detail=False))
    ]
    assert [len(each) for each in written] == objects
    assert [at for each in written for at in each] == list(range(sum(counts)))


def test_lines_that_a_store_did_not_take_come_with_the_next(store, monkeypatch):
    part, put = ObjectPart(FOLDER, "g1"), type(store).pipe_file
    part.append(lines(0, 1))

    def away(*_: object, **__: object) -> None:
        raise TimeoutError("the store is away")

    monkeypatch.setattr(type(store), "pipe_file", away)
    with pytest.raises(TimeoutError):
        part.append(lines(1, 2))
    monkeypatch.setattr(type(store), "pipe_file", put)
    part.append([])
    assert times(store, "trace-00000.csv") == [0, 1, 2]


def test_folders_are_made_where_a_store_has_them(tmp_path):
    part = ObjectPart(f"local://{tmp_path}/recorded", "g1")
    part.append(lines(0, 1))
    assert (tmp_path / "recorded/parts/g1/trace-00000.csv").exists()


def test_a_bucket_that_is_not_there_is_not_made(monkeypatch):
    class Buckets:
        def pipe_file(self, path: str, content: bytes) -> None:
            raise FileNotFoundError("The specified bucket does not exist")

    monkeypatch.setattr(module.object_store, "store", lambda url: (Buckets(), "bucket/m"))
    with pytest.raises(FileNotFoundError):
        ObjectPart("s3://bucket/m", "g1").append(lines(0, 1))


def test_a_recording_outlives_a_store_that_is_away_for_a_while(store, monkeypatch, caplog):
    recorder, put = recorder_of("g1"), type(store).pipe_file
    recorder.offer("acme", rows(3))

    def away(*_: object, **__: object) -> None:
        raise TimeoutError("the store is away")

    monkeypatch.setattr(type(store), "pipe_file", away)
    with pytest.raises(TimeoutError):
        recorder.write()
    monkeypatch.setattr(type(store), "pipe_file", put)
    recorder.close()
    (folder,) = store.ls(BELOW, detail=False)
    names = {name.rpartition("/")[2] for name in store.ls(folder, detail=False)}
    assert names == {"trace-00000.csv", "samples.npz"}
    assert caplog.text == ""


def test_a_store_that_stays_away_ends_the_recording_and_no_request(store, monkeypatch, caplog):
    def away(*_: object, **__: object) -> None:
        raise TimeoutError("the store is away")

    monkeypatch.setattr(type(store), "pipe_file", away)
    monkeypatch.setattr(ObjectPart, "every_s", 0.01)
    with caplog.at_level(logging.WARNING):
        recorder = recorder_of("g1")
        recorder.offer("acme", rows(3))
        recorder._thread.join(timeout=10)
    recorder.offer("acme", rows(3))
    said = [record.levelname for record in caplog.records]
    assert said == ["WARNING"] * (ObjectPart.failures - 1) + ["ERROR"]
    assert "recording ends: memory://bucket/recorded/m/parts/g1-" in caplog.text
    assert recorder._lines == []


def test_a_store_without_its_library_ends_the_recording_and_no_request(monkeypatch, caplog):
    def missing(_: str) -> None:
        raise ImportError("Install it")

    recorder = recorder_of("g1")
    monkeypatch.setattr("fsspec.get_filesystem_class", missing)
    recorder.offer("acme", rows(3))
    recorder.close()
    assert "recording ends" in caplog.text
    assert "is not installed" in caplog.text


def joined(tmp_path: Path, *more: str) -> Any:
    file = tmp_path / "settings.yaml"
    model = {"runtime": "synthetic", "lengths": {"max": 64, "buckets": [8, 64]}}
    file.write_text(yaml.safe_dump({"models": {"m": {**model, "record": {"folder": FOLDER}}}}))
    return CliRunner().invoke(main, ["record", str(file), "m", *more])


def test_what_gateways_kept_is_joined_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "SEGMENT_LINES", 2)
    for gateway, start in (("g1", 100), ("g2", 101)):
        recorder = recorder_of(gateway, start)
        for length in (3, 60, 5):
            recorder.offer(gateway, rows(length))
        recorder.close()
    done = joined(tmp_path)
    assert done.exit_code == 0, done.output
    assert "g1 3, g2 3" in done.output
    found = tmp_path / "recorded" / "m"
    assert [row.at_s for row in read_trace(found / "trace.csv")] == [0, 1, 1, 2, 2, 3]
    kept = ragged_file.read(found / "samples.npz")["input_ids"]
    assert sorted(map(len, kept)) == [3, 3, 5, 5, 60, 60]
    again = joined(tmp_path, "--to", str(tmp_path / "other"))
    assert again.exit_code == 0, again.output
    assert (tmp_path / "other" / "trace.csv").read_bytes() == (found / "trace.csv").read_bytes()


def test_a_store_that_holds_nothing_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = joined(tmp_path)
    assert done.exit_code == 2
    assert "memory://bucket/recorded/m holds nothing yet" in done.output
    assert not (tmp_path / "recorded").exists()
