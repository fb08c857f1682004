"""What a gateway keeps is on disk for its owner alone, joined, and replayed by the load tests."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from deployments.cli import main
from deployments.contract.description import Recording
from deployments.gateway.recording.part import FolderPart
from deployments.gateway.recording.recorder import Recorder, steady_wall_clock
from deployments.gateway.rows import RowColumn, Rows
from deployments.settings.model import ModelSettings
from deployments.tools import record as join
from loadtests.traffic.traces import read_trace
from runtimes import ragged_file


def rows(*lengths: int) -> Rows:
    arrays = [np.arange(length) for length in lengths]
    columns = {"input_ids": RowColumn("INT64", arrays, [(length,) for length in lengths])}
    return Rows(len(lengths), lengths, columns)


@pytest.fixture
def record(tmp_path):
    made = []

    def start(gateway: str = "g1", **bounds: Any) -> Recorder:
        limits = {"max_rows": 100, "max_bytes": 1 << 20, "max_requests": 1000, **bounds}
        recording = Recording(str(tmp_path / "recorded"), (8, 64), **limits)
        times = iter(range(100, 10_000))
        found = Recorder(recording, gateway, rng=random.Random(0), clock=lambda: float(next(times)))
        made.append(found)
        return found

    yield start
    for found in made:
        found.close()


def test_times_lengths_tenants_and_inputs_are_written_at_the_end(record):
    recorder = record()
    recorder.offer("acme", rows(3, 5))
    recorder.offer("other", rows(60))
    recorder.close()
    lines = (recorder.part.folder / "trace.csv").read_text().splitlines()
    assert lines == ["time,length,tenant", "100.000000,5,acme", "101.000000,60,other"]
    kept = ragged_file.read(recorder.part.folder / "samples.npz")["input_ids"]
    assert [len(row) for row in kept] == [3, 5, 60]


@pytest.mark.parametrize("step_s", [-3600.0, -2.0, 2.0, 3600.0])
def test_a_clock_that_is_set_meanwhile_moves_no_time(monkeypatch, step_s):
    clock, real = steady_wall_clock(), time.time
    before = clock()
    monkeypatch.setattr(time, "time", lambda: real() + step_s)
    assert 0.0 <= clock() - before < 1.0
    assert abs(steady_wall_clock()() - real() - step_s) < 1.0


def test_files_are_their_owner_s_alone(record):
    recorder = record()
    recorder.offer("acme", rows(3))
    recorder.close()
    modes = {file.name: file.stat().st_mode & 0o777 for file in recorder.part.folder.iterdir()}
    assert modes == {"trace.csv": 0o600, "samples.npz": 0o600}
    assert recorder.part.folder.stat().st_mode & 0o077 == 0


def test_nothing_is_written_before_anything_came(record):
    recorder = record()
    recorder.close()
    assert not recorder.part.folder.exists()


def test_the_trace_ends_at_its_bound_and_grows_by_what_came_since(record):
    recorder = record(max_requests=3)
    for _ in range(2):
        recorder.offer("a", rows(1))
        recorder.offer("a", rows(2))
        recorder.write()
    assert len((recorder.part.folder / "trace.csv").read_text().splitlines()) == 4


def test_a_folder_that_cannot_be_written_ends_the_recording_and_no_request(
    tmp_path, record, monkeypatch, caplog
):
    monkeypatch.setattr(FolderPart, "every_s", 0.01)
    (tmp_path / "recorded").write_text("a file is in the way")
    recorder = record()
    recorder.offer("a", rows(1))
    recorder._thread.join(timeout=5)
    recorder.offer("a", rows(1))
    assert "recording ends" in caplog.text
    assert recorder._lines == []


def settings(tmp_path: Path, **model) -> Path:
    file = tmp_path / "settings.yaml"
    fields = {"runtime": "synthetic", "lengths": {"max": 64, "buckets": [8, 64]}, **model}
    file.write_text(yaml.safe_dump({"models": {"m": fields}}))
    return file


def joined(file: Path):
    return CliRunner().invoke(main, ["record", str(file), "m"])


def test_what_gateways_kept_is_joined_in_order_of_time_and_replayed(tmp_path, record):
    one, two = record("g1"), record("g2")
    one.offer("acme", rows(3))
    two.offer("other", rows(60, 2))
    one.offer("acme", rows(4))
    one.close()
    two.close()
    done = joined(settings(tmp_path, record={"folder": "recorded"}))
    assert done.exit_code == 0, done.output
    assert "acme 2, other 1" in done.output
    trace = list(read_trace(tmp_path / "recorded" / "trace.csv"))
    assert [row.length for row in trace] == [3, 60, 4]
    assert [row.at_s for row in trace] == [0, 0, 1]
    kept = ragged_file.read(tmp_path / "recorded" / "samples.npz")["input_ids"]
    assert sorted(map(len, kept)) == [2, 3, 4, 60]
    assert (tmp_path / "recorded" / "samples.npz").stat().st_mode & 0o077 == 0
    line = next(line for line in done.output.splitlines() if "9-64" in line)
    assert line.split() == ["9-64", "1", "1"]


def test_the_joined_files_go_where_one_says(tmp_path, record):
    recorder = record()
    recorder.offer("acme", rows(3))
    recorder.close()
    file = settings(tmp_path, record={"folder": f"file://{tmp_path}/recorded"})
    command = ["record", str(file), "m", "--to", str(tmp_path / "elsewhere" / "m")]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert len(list(read_trace(tmp_path / "elsewhere" / "m" / "trace.csv"))) == 1
    assert (tmp_path / "elsewhere" / "m").stat().st_mode & 0o077 == 0
    assert not (tmp_path / "recorded" / "trace.csv").exists()


@pytest.mark.parametrize(
    ("fields", "said"),
    [({}, "models.m keeps nothing"), ({"record": {"folder": "none"}}, "holds nothing yet")],
)
def test_nothing_recorded_says_what_to_do(tmp_path, fields, said):
    done = joined(settings(tmp_path, **fields))
    assert done.exit_code == 2
    assert said in done.output


def generated(record, gateway: str) -> Recorder:
    recorder = record(gateway, generates=True)
    recorder.generated("acme", 12.5, 40, 7)
    recorder.generated("other", 11.0, 3, 0)
    recorder.close()
    return recorder


def test_of_what_is_generated_lengths_are_kept_and_nothing_else(record):
    recorder = generated(record, "g1")
    (trace,) = recorder.part.folder.iterdir()
    lines = trace.read_text().splitlines()
    assert lines == ["time,length,output,tenant", "12.500000,40,7,acme", "11.000000,3,0,other"]


def test_of_what_is_generated_as_many_are_kept_as_are_asked_for(record):
    recorder = record(max_requests=2, generates=True)
    for at in range(5):
        recorder.generated("acme", float(at), 1, 1)
    recorder.close()
    assert len((recorder.part.folder / "trace.csv").read_text().splitlines()) == 3


def test_lengths_of_several_gateways_are_joined_in_order_and_replayed_with_outputs(
    record, tmp_path
):
    generated(record, "g1")
    part = generated(record, "g2").part.folder
    with (part / "trace.csv").open("a") as trace:
        trace.write("13.0,5,6")  # a line that is being written
    model = ModelSettings.model_validate(
        {"runtime": "synthetic", "task": "generate", "record": {"folder": str(tmp_path)}}
    )
    recorded = join.joined(tmp_path / "recorded", model, tmp_path / "joined")
    assert recorded.tenants == {"acme": 2, "other": 2}
    assert sum(recorded.came.values()) == 4
    rows = list(read_trace(tmp_path / "joined" / "trace.csv", outputs=True))
    assert [(row.at_s, row.length, row.output) for row in rows] == [
        (0.0, 3, 1), (0.0, 3, 1), (1.5, 40, 7), (1.5, 40, 7),
    ]  # fmt: skip
