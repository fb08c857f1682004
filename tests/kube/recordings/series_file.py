"""Scrapes of a server's metrics as one small file, and back as OpenMetrics with timestamps.

A line a series: its name and labels, a tab, and its value at each scrape, `=` where it is the one
before and nothing where the series was not there. A header says when the scrapes were made, of
which machine and by which command. Compressed with xz, whose window is wide enough to see that
series are alike. What comes out is what `promtool tsdb create-blocks-from openmetrics` takes.

Source: OpenMetrics 1.0, text format.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_SAME, _END = "=", "# EOF\n"


class BadRecording(ValueError):
    """A file is not what this module writes; says where."""


@dataclass(frozen=True, slots=True)
class SeriesRecording:
    """`facts`: of what, where, when and how. `at_s`: of each scrape, Unix time. `series`: by name
    and labels as Prometheus writes them, a value a scrape, None where there was none."""

    facts: Mapping[str, str]
    at_s: Sequence[float]
    series: Mapping[str, Sequence[str | None]]

    @property
    def names(self) -> set[str]:
        return {series.partition("{")[0] for series in self.series}

    def openmetrics(self) -> Iterator[str]:
        """Lines, series by series, and the end mark."""
        for series, values in self.series.items():
            for at_s, value in zip(self.at_s, values, strict=True):
                if value is not None:
                    yield f"{series} {value} {at_s:.3f}\n"
        yield _END


@dataclass(slots=True)
class SeriesRecorder:
    """Takes pages as they come. `add` gets all pages of one scrape together."""

    at_s: list[float] = field(default_factory=list)
    series: dict[str, list[str | None]] = field(default_factory=dict)

    def add(self, at_s: float, pages: Mapping[str, str]) -> None:
        """`pages`: text by the target's name, which becomes the label `instance`."""
        for instance, text in pages.items():
            for line in text.splitlines():
                if line and not line.startswith("#"):
                    labelled, _, value = line.rpartition(" ")
                    values = self.series.setdefault(_with_instance(labelled, instance), [])
                    values += [None] * (len(self.at_s) - len(values))
                    values.append(value)
        self.at_s.append(at_s)

    def done(self, facts: Mapping[str, str]) -> SeriesRecording:
        scrapes = len(self.at_s)
        whole = {
            series: [*values, *[None] * (scrapes - len(values))]
            for series, values in sorted(self.series.items())
        }
        return SeriesRecording(facts, self.at_s, whole)


def write(recording: SeriesRecording, path: Path) -> None:
    header = {"facts": dict(recording.facts), "at_s": list(recording.at_s)}
    lines = [json.dumps(header)]
    lines += [f"{series}\t{_packed(values)}" for series, values in recording.series.items()]
    path.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))


def read(path: Path) -> SeriesRecording:
    """Raises OSError and BadRecording."""
    try:
        first, *lines = lzma.decompress(path.read_bytes()).decode().split("\n")
        header = json.loads(first)
        at_s = header["at_s"]
        series = dict(_unpacked(line, len(at_s)) for line in lines)
    except (lzma.LZMAError, ValueError, KeyError) as error:
        raise BadRecording(f"{path}: {error}") from error
    return SeriesRecording(header["facts"], at_s, series)


def _with_instance(labelled: str, instance: str) -> str:
    name, _, labels = labelled.rstrip("}").partition("{")
    own = f'instance="{instance}",job="headrace"'
    return f"{name}{{{labels},{own}}}" if labels else f"{name}{{{own}}}"


def _packed(values: Sequence[str | None]) -> str:
    packed, before = [], None
    for value in values:
        packed.append("" if value is None else _SAME if value == before else value)
        before = value
    return " ".join(packed)


def _unpacked(line: str, scrapes: int) -> tuple[str, list[str | None]]:
    series, _, packed = line.partition("\t")
    values: list[str | None] = []
    for each in packed.split(" "):
        values.append(values[-1] if each == _SAME and values else each or None)
    if len(values) != scrapes:
        raise ValueError(f"{series} has {len(values)} values of {scrapes} scrapes")
    return series, values
