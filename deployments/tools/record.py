"""`headrace record`: joins what gateways recorded of a model, for calibration and replay.

Each gateway writes a folder below `parts/`. This joins them into `samples.npz` (rows) and
`trace.csv` (requests), while gateways go on recording, and prints the number of rows in each length
bucket: a calibration needs rows of all buckets. The parts are in a folder, where the joined files
go too unless told otherwise, or in an object store. From a store they are copied, so that any
machine that may read the store can run this.
"""

from __future__ import annotations

import csv
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from deployments.gateway.recording.part import GENERATED, HEADER, PARTS, TRACE
from deployments.replica.describe import with_lengths
from deployments.replica.verify.agreement import Interval
from deployments.replica.verify.samples import interval_of
from deployments.settings import remote_source
from deployments.settings.image import patches
from deployments.settings.lengths import bucket_edges
from deployments.settings.model import ModelSettings
from deployments.settings.reference import CannotVerify
from deployments.settings_files import object_store
from deployments.tools.verify.command import chosen
from runtimes import ragged_file
from runtimes.graph.bert import INPUT_IDS

_HEADERS = {len(header): header for header in (HEADER, GENERATED)}
Line = tuple[float, tuple[int, ...], str]


@dataclass(frozen=True, slots=True)
class JoinedRecording:
    """`kept`, `came`: rows whose inputs are kept, requests in the trace, by length bucket."""

    folder: Path
    kept: Counter[Interval]
    came: Counter[Interval]
    tenants: Counter[str]
    among: tuple[Interval, ...]


def show(file: Path, name: str, to: Path | None = None) -> int:
    """The exit code. `to`: where the joined files go; None: to the parts' own folder, or of an
    object store's to `recorded/NAME` here. Raises SettingsErrors, SourceError, CannotVerify."""
    model = chosen(file, name)
    folder = model.record.folder
    if folder is None:
        raise CannotVerify(
            f"models.{name} keeps nothing: set record: {{folder: …}} and apply the file; what "
            "callers send is then written there"
        )
    if remote_source.is_remote(folder):
        with tempfile.TemporaryDirectory(prefix="headrace-record-") as copy:
            _copy_parts(folder, Path(copy))
            recorded = joined(Path(copy), model, to or Path("recorded") / name, folder)
    else:
        local = Path(remote_source.path_of(folder))
        recorded = joined(local, model, to or local, folder)
    _print(name, recorded)
    return 0


def joined(source: Path, model: ModelSettings, folder: Path, shown: str = "") -> JoinedRecording:
    """Joins the parts below `source` into files in `folder`. `shown`: what to call the source.
    Raises `CannotVerify` where nothing was recorded yet."""
    parts = sorted((source / PARTS).glob("*/")) if source.is_dir() else []
    lines = sorted(line for part in parts for line in _lines(part))
    columns = _columns(parts)
    if not lines and not columns:
        name = remote_source.redacted(shown) if remote_source.is_url(shown) else source
        raise CannotVerify(f"{name} holds nothing yet; it is written some time after requests")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write_trace(folder / TRACE, lines)
    if columns:
        with _replacing(folder / ragged_file.FILE) as made, made.open("wb") as stream:
            ragged_file.write(stream, columns)
    among = _intervals(with_lengths(model))
    kept = _lengths(model, columns)
    return JoinedRecording(
        folder,
        Counter(interval_of(length, among) for length in kept),
        Counter(interval_of(lengths[0], among) for _, lengths, _ in lines),
        Counter(tenant for _, _, tenant in lines),
        among,
    )


def _copy_parts(folder: str, to: Path) -> None:
    """Raises SourceError."""
    file_system, path = object_store.store(folder)
    try:
        for name, _ in list(object_store.files_below(file_system, f"{path.rstrip('/')}/{PARTS}")):
            if remote_source.escapes_folder(name):
                continue
            (to / PARTS / name).parent.mkdir(parents=True, exist_ok=True)
            file_system.get_file(f"{path.rstrip('/')}/{PARTS}/{name}", str(to / PARTS / name))
    except FileNotFoundError:
        return  # nothing is there yet
    except Exception as error:  # each store's library has errors of its own
        raise remote_source.SourceError(
            f"{remote_source.redacted(folder)} cannot be read: {type(error).__name__}: {error}"
        ) from error


def _intervals(model: ModelSettings) -> tuple[Interval, ...]:
    tops = bucket_edges(model.lengths)
    return tuple(Interval(low + 1, top) for low, top in zip((0, *tops), tops, strict=False))


def _lengths(model: ModelSettings, columns: dict[str, list[ragged_file.Array]]) -> list[int]:
    """Of the rows that are kept, as the model counts them."""
    rows = columns.get(model.lengths.input or INPUT_IDS) or next(iter(columns.values()), [])
    if model.image is not None:
        sides = slice(1, 3) if model.image.layout == "NCHW" else slice(0, 2)
        return [patches(*row.shape[sides]) if row.ndim == 3 else 1 for row in rows]
    axis = (model.lengths.axis or 1) - 1
    return [row.shape[axis] if row.ndim > axis else 1 for row in rows]


def _columns(parts: list[Path]) -> dict[str, list[ragged_file.Array]]:
    found = [ragged_file.read(file) for part in parts if (file := part / ragged_file.FILE).exists()]
    kinds = [tuple(sorted(columns)) for columns in found]
    usual = max(set(kinds), key=kinds.count, default=())
    same = [columns for columns, kind in zip(found, kinds, strict=True) if kind == usual]
    return {name: [row for columns in same for row in columns[name]] for name in usual}


def _lines(part: Path) -> Iterator[Line]:
    """Of its trace, or of the pieces that it has in an object store: time, lengths, tenant."""
    for trace in part.glob(f"{Path(TRACE).stem}*.csv"):
        with trace.open(newline="", encoding="utf-8") as stream:
            rows = csv.reader(stream)
            columns = len(next(rows, ()))
            for row in rows:
                if len(row) == columns:  # a gateway may be writing its last line
                    yield float(row[0]), tuple(map(int, row[1:-1])), row[-1]


def _write_trace(file: Path, lines: list[Line]) -> None:
    with _replacing(file) as made, made.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        longest = max((len(lengths) for _, lengths, _ in lines), default=1)
        writer.writerow(_HEADERS[2 + longest])
        writer.writerows((f"{at:.6f}", *lengths, tenant) for at, lengths, tenant in lines)


@contextmanager
def _replacing(file: Path) -> Iterator[Path]:
    """A file of its owner's alone to write to, which then takes `file`'s place, whole or not at
    all: a replica may be reading that."""
    handle, made = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    os.close(handle)
    try:
        yield Path(made)
        os.replace(made, file)
    finally:
        Path(made).unlink(missing_ok=True)


def _print(name: str, recorded: JoinedRecording) -> None:
    table = Table(title=f"{name}: {recorded.folder}", title_justify="left", box=None)
    for heading in ("tokens", "requests", "rows kept"):
        table.add_column(heading, justify="right" if heading != "tokens" else "left")
    for interval in recorded.among:
        table.add_row(str(interval), str(recorded.came[interval]), str(recorded.kept[interval]))
    Console().print(table)
    most = ", ".join(f"{tenant} {count}" for tenant, count in recorded.tenants.most_common(10))
    click.echo(f"tenants: {most or 'none'}")
    click.echo(f"replay:    headrace load SCENARIO --url … --trace {recorded.folder / TRACE}")
    click.echo(f"calibrate: options: {{calibration: {recorded.folder}}}")
