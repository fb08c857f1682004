"""`headrace try`: loads one model in this process and runs rows through it, without a server.

Rows are read, batched, run and answered by the code that a gateway and a replica use, so what fails
here would fail there. Each row is run alone as well: an answer that depends on which rows share its
batch is said.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import orjson

from deployments.contract.channel.frames import rows_of
from deployments.contract.errors import HeadraceError
from deployments.gateway.http.protocols import predict
from deployments.gateway.rows import Rows
from deployments.replica import backend_env, describe
from deployments.replica.artifacts.local_model import local_model
from deployments.replica.device import BatchResult, run_bisected
from deployments.settings.model import ModelSettings
from deployments.settings_files.made import cache_dir
from deployments.tools.console.progress_bar import Note, shown_progress
from deployments.tools.stage import awaits_export
from deployments.tools.verify.command import chosen
from runtimes import catalog, warmup
from runtimes.types import Batch, Ragged, Runtime, RuntimeSettings

_RELATIVE = 1e-4  # by which a row alone may differ from itself in a batch
_INVALID = 2
_FORM = "one instance as `:predict` takes it, such as '{\"flower\": [5.1, 3.5, 1, 0]}'"
_SERVED = {"embed": "/v1/embeddings", "classify": "/v1/classify", "rerank": "/v1/rerank"}


def try_model(file: Path, name: str, written: Sequence[str]) -> int:
    """`written`: rows, each the JSON of one instance as `:predict` takes it; none: a made-up row.
    Returns the exit code: 1 where a row failed. Raises SettingsErrors and what loading raises."""
    model = chosen(file, name)
    if model.task == catalog.GENERATE:
        click.echo(f"{name} generates; `headrace try` runs models that take batches", err=True)
        return _INVALID
    wrong = next(filter(None, map(_not_json, written)), None)
    if wrong:
        click.echo(f"error: {wrong}", err=True)
        return _INVALID
    begin = time.perf_counter()
    runtime: Runtime | None = None
    try:
        with shown_progress(name) as shown:
            note = _Phases(name, shown)
            if model.dependencies:
                note.say(f"installing {', '.join(model.dependencies)}, unless they are there")
            model = local_model(model, cache_dir(), note)
            settings = describe.runtime_settings(name, model, cache_dir(), note)
            if wrong := unprepared(model, settings.source, written):
                click.echo(f"error: {wrong}", err=True)
                return _INVALID
            backend_env.set_engine_variables(settings)
            runtime = catalog.create(settings)
            note.say("loading")
            if awaits_export(settings):
                note.say("exporting its folder to ONNX, once on this machine; it can take minutes")
            runtime.load()
            note.say("warming up")
            runtime.warm()
        click.echo(f"{name} is loaded and warm after {time.perf_counter() - begin:.1f} s")
        return _tried(name, model, settings, runtime, written)
    finally:
        if runtime is not None:
            runtime.close()


class _Phases:
    """Prints a line on standard error for each phase, and moves the bar of a terminal."""

    def __init__(self, name: str, shown: Note) -> None:
        self._name, self._shown = name, shown

    def say(self, phase: str) -> None:
        click.echo(f"{self._name}: {phase}", err=True)

    def __call__(self, phase: str, share: float) -> None:
        self._shown(phase, share)


def _not_json(row: str) -> str | None:
    try:
        orjson.loads(row)
    except orjson.JSONDecodeError as error:
        return f"the ROW {row!r} is no JSON ({error}); must be {_FORM}"
    return None


def unprepared(model: ModelSettings, source: Path | None, written: Sequence[str]) -> str | None:
    """What is wrong with rows of texts or images for a network that takes tokens or pixels, which
    a gateway makes of them."""
    if not any(_has_text(orjson.loads(row)) for row in written):
        return None
    where = _SERVED.get(model.task, "/v1/models/NAME:predict")
    if model.image is not None:
        where = where.replace("/v1/classify", "/v1/models/NAME:classify")
        return (
            "`headrace try` runs the network alone, which takes pixels: a ROW must be arrays of "
            f"numbers. A server takes images, at POST {where}"
        )
    if not catalog.entry_of(model.runtime, model.task).kinds:
        return None  # it may take texts itself
    if source is None or not (source / "config.json").is_file():
        return None
    return (
        "`headrace try` runs the network alone, which takes tokens: a ROW must be such as "
        f"'{{\"input_ids\": [101, 7592, 102]}}'. A server takes texts, at POST {where}"
    )


def _has_text(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, str) or (isinstance(value, list) and any(map(_has_text, value)))


def _tried(
    name: str,
    model: ModelSettings,
    settings: RuntimeSettings,
    runtime: Runtime,
    written: Sequence[str],
) -> int:
    described, _ = describe.describe(name, model, "", runtime)
    for spec in (*described.inputs, *described.outputs):
        kind = "takes" if spec in described.inputs else "gives"
        click.echo(f"  {kind} {spec.name} {spec.datatype} {list(spec.shape[1:])}")
    call = predict.decode(b'{"instances": [0]}')
    if written:
        try:
            call = predict.decode(f'{{"instances": [{",".join(written)}]}}'.encode())
            batch = _batch(predict.rows_of(call, described))
        except HeadraceError as error:
            click.echo(f"error: {error} A ROW must be {_FORM}", err=True)
            return _INVALID
    else:
        shape = min(warmup.shapes(settings, runtime.limits()), key=lambda each: each[0] * each[1])
        batch = warmup.batch(runtime.limits(), *shape)
    click.echo(f"{name}: running {batch.rows} {'row' if batch.rows == 1 else 'rows'}", err=True)
    begin = time.perf_counter()
    done = run_bisected(runtime, batch, allow_non_finite=model.allow_non_finite)
    click.echo(f"{batch.rows} rows in {(time.perf_counter() - begin) * 1e3:.1f} ms")
    failed = {error.row: error for error in done.errors}
    outputs = {name: (ragged.datatype, rows_of(ragged)) for name, ragged in done.outputs.items()}
    body = predict.encode(call, outputs, described).body if outputs else b'{"predictions":[]}'
    answers = iter(orjson.loads(body)["predictions"])
    for row in range(batch.rows):
        if row in failed:
            status = 400 if failed[row].callers_fault else 503
            click.echo(f"row {row}: HTTP {status}: {failed[row].message}")
            continue
        click.echo(f"row {row}: {orjson.dumps(next(answers)).decode()}")
    changed = _changed_alone(runtime, batch, done)
    if changed:
        listed = ", ".join(map(str, changed))
        click.echo(f"rows that alone have another answer than in this batch: {listed}")
    return 1 if failed else 0


def _batch(rows: Rows) -> Batch:
    inputs = {
        name: Ragged(column.datatype, np.concatenate(column.rows), tuple(column.shapes))
        for name, column in rows.inputs.items()
    }
    return Batch(rows.count, np.array(rows.lengths, np.int64), inputs, rows.outputs)


def _changed_alone(runtime: Runtime, batch: Batch, done: BatchResult) -> list[int]:
    """The rows whose answer depends on what else is in the batch."""
    failed = {error.row for error in done.errors}
    answered = [row for row in range(batch.rows) if row not in failed]
    together = {name: rows_of(ragged) for name, ragged in done.outputs.items()}
    changed = []
    for place, row in enumerate(answered if batch.rows > 1 else ()):
        alone = run_bisected(runtime, batch.picked([row]), allow_non_finite=True)
        same = not alone.errors and all(
            _close(rows_of(alone.outputs[name])[0], rows[place]) for name, rows in together.items()
        )
        if not same:
            changed.append(row)
    return changed


def _close(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    if one.shape != other.shape:
        return False
    if one.dtype.kind != "f":
        return bool((one == other).all())
    return np.allclose(one, other, rtol=_RELATIVE, atol=_RELATIVE, equal_nan=True)
