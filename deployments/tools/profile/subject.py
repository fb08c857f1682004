"""From a settings file and a model's name to what is profiled, loaded as a replica would.

What the file says is taken as it stands; nothing is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from deployments.replica import backend_env
from deployments.replica.describe import runtime_settings, with_image_lengths
from deployments.replica.known_costs import identity_of
from deployments.settings.model import ModelSettings
from deployments.settings_files.load import load
from deployments.settings_files.made import cache_dir
from deployments.tools.profile.errors import CannotProfile, WrongArguments
from deployments.tools.profile.findings import Subject
from deployments.tools.profile.lengths import RowLengths, as_taken, lengths_for
from runtimes import catalog, footprint, source
from runtimes.errors import RuntimeFault
from runtimes.types import Limits, Runtime, RuntimeSettings


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """The command line. `seconds`: of measuring, beside loading and warm-up; `lengths`: see
    `lengths.py`; `seed` decides every random choice."""

    file: Path
    model: str | None
    seconds: float
    lengths: Path | None
    seed: int


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """One model of the file, and what it will be options."""

    name: str
    model: ModelSettings
    settings: RuntimeSettings
    lengths: RowLengths
    cache_dir: Path


def chosen(options: ProfileOptions) -> ChosenModel:
    """Raises SettingsErrors, WrongArguments, CannotProfile, TraceError and ScenarioErrors."""
    models = load(options.file).models
    name = options.model or (next(iter(models)) if len(models) == 1 else "")
    if name not in models:
        listed = ", ".join(models)
        what = f"no model {name!r} there" if name else "a model must be named"
        raise WrongArguments(f"{options.file}: {what}; it has {listed}")
    model, folder = models[name], cache_dir()
    try:
        settings = runtime_settings(name, model, folder, lambda phase, fraction: None)
    except RuntimeFault as error:
        raise CannotProfile(str(error)) from None
    generates = model.task == "generate"
    if generates and options.lengths is None:
        raise WrongArguments(
            f"--lengths is missing: {name} generates, and is profiled by the lengths of what it "
            "was asked and has answered (one a line, or a recording)"
        )
    rng = Random(options.seed)
    longest = with_image_lengths(model).lengths.max
    lengths = lengths_for(options.lengths, longest, rng, outputs=generates)
    return ChosenModel(name, model, settings, lengths, folder)


def created(settings: RuntimeSettings) -> Runtime:
    """Raises CannotProfile in the backend's words."""
    backend_env.set_compiler_cache(settings.cache_dir)
    try:
        return catalog.create(settings)
    except RuntimeFault as error:
        raise CannotProfile(str(error)) from None


def subject_of(found: ChosenModel, limits: Limits) -> Subject:
    model = found.model
    return Subject(
        name=found.name,
        settings=found.settings,
        identity=identity_of(found.settings),
        limits=limits,
        lengths=replace(found.lengths, rows=as_taken(found.lengths.rows, limits)),
        parameters=_parameters(found.settings),
        max_s=model.batch.max_slo_share * model.slo.latency_ms / 1e3,
        replicas=model.replicas.initial,
    )


def _parameters(settings: RuntimeSettings) -> footprint.Parameters | None:
    if settings.source is None or settings.runtime == "synthetic":
        return None
    return footprint.count(source.inspect(settings.source, settings.cache_dir))
