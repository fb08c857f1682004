"""`headrace stage FILE`: brings the files of a settings file's models to this node's cache.

It fetches, verifies, unpacks and (with --convert) converts what a starting replica would, by the
same code under the same file locks. So it resumes interrupted runs, and several runs or replicas
that start at the same time do the work once. A model that cannot be staged does not stop the
others. Nothing is served. Exit codes: 0 all models are staged, 1 some are not, 2 the settings are
wrong.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import click

from deployments.contract.model_arguments import shaping
from deployments.replica import backend_env, describe
from deployments.replica.artifacts.local_model import PHASE, local_model, local_options
from deployments.replica.startup import settings_here
from deployments.settings.model import ModelSettings
from deployments.settings.remote_source import SourceError
from deployments.settings_files.load import load
from deployments.settings_files.made import CannotMake, cache_dir
from deployments.settings_files.sources import resolve, sources_folder
from deployments.tools.console.progress_bar import Note, shown_progress
from runtimes import catalog, exporting, options
from runtimes.errors import RuntimeFault
from runtimes.types import RuntimeSettings, StreamRuntime

_FAULTS = (RuntimeFault, SourceError, CannotMake, OSError)


def stage(path: Path, *, convert: bool) -> int:
    """Stage each model and print a line about it. Returns the exit code. `convert`: also make the
    files that backends convert to, for models that need no GPU. Raises SettingsErrors."""
    settings = load(path, here=False, absolute=sources_folder() is None)
    backend_env.set_compiler_cache(cache_dir())
    failed = 0
    for name, model in settings.models.items():
        began = time.monotonic()
        try:
            said = _staged(name, model, convert)
        except _FAULTS as fault:
            click.echo(f"{name}: cannot be staged: {fault}", err=True)
            failed += 1
        else:
            click.echo(f"{name}: {said} ({time.monotonic() - began:.1f} s)")
    if failed:
        click.echo(f"{failed} of {len(settings.models)} models are not staged", err=True)
    return int(failed > 0)


def _staged(name: str, model: ModelSettings, convert: bool) -> str:
    """Stage one model (for a model with groups, each of them). Returns what was done."""
    done: dict[str, None] = {}
    views = model.views() or {"": model}
    with shown_progress(name) as shown:
        for view in views.values():
            here = settings_here(shaping(view), 1)
            done[_fetched(name, here, shown, convert)] = None
            if convert and view.replicas.num_gpus:
                done["not converted, since that needs a GPU: its first replica does it"] = None
            elif convert:
                done[_converted(name, here, shown)] = None
    return ", ".join(done)


def _fetched(name: str, model: ModelSettings, shown: Note, convert: bool) -> str:
    worked = False

    def note(phase: str, share: float) -> None:
        nonlocal worked
        worked |= phase == PHASE
        shown(phase, share)

    local = local_model(model, cache_dir(), note)
    local_options(model.options, cache_dir(), note)
    if local.source is None:
        return "has no files"
    said = "fetched" if worked else "already there"
    path = resolve(local.source)
    if path.is_dir():
        if model.task == catalog.GENERATE:
            catalog.check_streamed_weights(model.runtime, path, model.options)
            return said
        catalog.files(model.runtime, path, model.task)  # raises for weights that are cut off
        if not convert:
            settings = describe.runtime_settings(name, local, cache_dir(), shown)
            if awaits_export(settings):
                said += ", not exported to ONNX yet: --convert does it, else the first start"
    return said


def awaits_export(settings: RuntimeSettings) -> bool:
    """Whether the model's next start on this node exports its folder to ONNX. Raises
    `LoadError`."""
    chosen = options.parse(catalog.options_class(settings.runtime), settings.options)
    return exporting.is_due(catalog.as_run(settings), chosen)


async def _loaded_once(engine: StreamRuntime) -> None:
    try:
        await engine.load()
    finally:
        await engine.close()


def _converted(name: str, model: ModelSettings, shown: Note) -> str:
    """Convert a model by loading it as a replica would. Of the engines that generate, only
    OpenVINO's converts anything that could be kept."""
    if model.task == "generate" and model.runtime != "openvino":
        return "needs no conversion"
    model = local_model(model, cache_dir(), shown)
    if model.task == "generate":
        settings = describe.runtime_settings(name, model, cache_dir(), shown)
        asyncio.run(_loaded_once(catalog.create_stream(settings)))
        return "converted"
    runtime = catalog.create(describe.runtime_settings(name, model, cache_dir(), shown))
    try:
        runtime.load()
    finally:
        runtime.close()
    return "converted"
