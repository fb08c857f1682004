"""`headrace stage FILE`: brings what models of a settings file are made of to this node's cache.

What a replica's start would fetch, verify, unpack and, asked to, convert is there before: by the
same code under the same file locks, so that it goes on where an earlier run was cut, and that
several at once, or replicas that start meanwhile, do the work once. A model that cannot be had
holds up no other. Nothing is served. Exit codes: 0 all is there, 1 not, 2 the settings are wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import click

from deployments.cluster.model_arguments import shaping
from deployments.replica import backend_env, describe
from deployments.replica.artifacts.local_model import PHASE, local_model, local_options
from deployments.replica.local_settings import settings_here
from deployments.settings.load import load
from deployments.settings.made import CannotMake, cache_dir
from deployments.settings.model import ModelSettings
from deployments.settings.remote_source import SourceError, is_url
from deployments.settings.sources import resolve, sources_folder
from deployments.tools.verify.command import shown_progress
from runtimes import catalog
from runtimes.errors import RuntimeFault

Note = Callable[[str, float], None]
_FAULTS = (RuntimeFault, SourceError, CannotMake, OSError)


def stage(path: Path, *, convert: bool) -> int:
    """The exit code; a line a model. Raises SettingsErrors. `convert`: also what backends make of
    the files, of models that need no GPU."""
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
    """What was done. Of a model with groups, for each of them."""
    done: dict[str, None] = {}
    views = model.views() or {"": model}
    with shown_progress(name) as shown:
        for view in views.values():
            here = settings_here(shaping(view), 1)
            done[_fetched(here, shown)] = None
            if convert and view.replicas.num_gpus:
                done["needs a GPU: its first replica converts it"] = None
            elif convert:
                done[_converted(name, here, shown)] = None
    return ", ".join(done)


def _fetched(model: ModelSettings, shown: Note) -> str:
    worked = False

    def note(phase: str, share: float) -> None:
        nonlocal worked
        worked |= phase == PHASE
        shown(phase, share)

    local_model(model, cache_dir(), note)
    local_options(model.options, cache_dir(), note)
    if model.source is None:
        return "has no files"
    if not is_url(model.source):
        resolve(model.source)
    return "fetched" if worked else "was there"


def _converted(name: str, model: ModelSettings, shown: Note) -> str:
    """By loading it as a replica would; an engine that generates makes nothing that lasts."""
    if model.task == "generate":
        return "is not converted"
    model = local_model(model, cache_dir(), shown)
    runtime = catalog.create(describe.runtime_settings(name, model, cache_dir(), shown))
    try:
        runtime.load()
    finally:
        runtime.close()
    return "converted"
