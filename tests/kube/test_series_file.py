"""A recording of metrics pages: as it was when it is read again, and as Prometheus takes it."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from tests.kube.recordings import series_file, war_room
from tests.kube.recordings.series_file import BadRecording, SeriesRecorder, SeriesRecording

PAGES = (
    {"a": '# HELP x y\nx{m="1"} 1.0\nup 1\n', "b": "up 1\n"},
    {"a": 'x{m="1"} 1.0\nx{m="2"} 5e-05\nup 0\n'},
    {"a": 'x{m="1"} 3.0\nup 0\n', "b": "up 1\n"},
)


@pytest.fixture
def recording() -> SeriesRecording:
    recorder = SeriesRecorder()
    for turn, pages in enumerate(PAGES):
        recorder.add(100.0 + 5 * turn, pages)
    return recorder.done({"command": "x"})


def test_a_series_has_a_value_for_each_scrape_or_none(recording: SeriesRecording) -> None:
    assert dict(recording.series) == {
        'up{instance="a",job="headrace"}': ["1", "0", "0"],
        'up{instance="b",job="headrace"}': ["1", None, "1"],
        'x{m="1",instance="a",job="headrace"}': ["1.0", "1.0", "3.0"],
        'x{m="2",instance="a",job="headrace"}': [None, "5e-05", None],
    }
    assert recording.names == {"up", "x"}


def test_what_was_written_is_read(recording: SeriesRecording, tmp_path: Path) -> None:
    series_file.write(recording, tmp_path / "x.xz")
    assert series_file.read(tmp_path / "x.xz") == recording


def test_openmetrics_has_a_line_a_sample_and_an_end(recording: SeriesRecording) -> None:
    lines = list(recording.openmetrics())
    assert lines[3] == 'up{instance="b",job="headrace"} 1 100.000\n'
    assert lines[-1] == "# EOF\n"
    assert len(lines) == 3 + 2 + 3 + 1 + 1


@pytest.mark.parametrize(
    "content",
    [b"not xz", lzma.compress(b"{}"), lzma.compress(b'{"facts": {}, "at_s": [1]}\nx\t1 2')],
)
def test_what_is_no_recording_is_refused_with_its_name(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.xz").write_bytes(content)
    with pytest.raises(BadRecording, match=r"x\.xz: "):
        series_file.read(tmp_path / "x.xz")


def test_the_war_rooms_recording_has_what_is_said_of_it() -> None:
    found = series_file.read(war_room.RECORDING)
    assert war_room.RECORDING.stat().st_size < 500_000
    assert found.facts["command"].endswith("recordings.war_room")
    assert len(found.at_s) >= 70
    lost = [v for s, v in found.series.items() if s.startswith("headrace_batches") and "lost" in s]
    assert sum(float(values[-1] or 0) for values in lost) > 0, "a replica was killed"
