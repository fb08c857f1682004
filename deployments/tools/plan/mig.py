"""`headrace plan mig`: packs a settings file's replicas onto MIG slices of GPUs.

Reads the file, computes the memory that each replica needs, packs the replicas onto slices, and
prints the plan or writes it as files for a cluster. It starts no model and needs no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from autoscaling.mig.geometry import GPUS, Gpu, Profile, with_usable
from autoscaling.mig.packing import Demand, pack, profile_for
from deployments.settings.tree import Settings
from deployments.settings_files.load import load
from deployments.tools.plan import manifests, mig_table
from deployments.tools.plan.needs import MemoryOverrides, Need, names, needs
from deployments.tools.plan.types import MigPlan, MigRequest

HEADINGS = {
    "values.yaml": "for the chart, after the settings file; keep the worker groups' order",
    "mig-parted.yaml": "the MIG manager's config.yaml",
    "groups.yaml": "for the settings file: which slice each replica asks for",
}


class WrongRequest(click.UsageError):
    """An option is wrong; the message says how."""


def plan_mig(file: Path, request: MigRequest, *, form: str, to: Path | None) -> int:
    """Prints the plan as `form` (table, json, yaml) and writes its files into the folder `to`.

    Returns the exit code: 1 if a replica has no slice. Raises SettingsErrors and WrongRequest.
    """
    made = planned(load(file, here=False), request)
    if to is not None:
        _write(made, to)
    if form == "json":
        click.echo(mig_table.as_json(made))
    elif form == "yaml":
        texts = [_text(name, data) for name, data in made.files.items()]
        click.echo("---\n".join(texts), nl=False)
    else:
        mig_table.show(made)
    return 0 if made.complete else 1


def _write(made: MigPlan, to: Path) -> None:
    """Writes the plan's files into the folder `to`. Raises WrongRequest."""
    try:
        to.mkdir(parents=True, exist_ok=True)
        for name, data in made.files.items():
            (to / name).write_text(_text(name, data), encoding="utf-8")
    except OSError as error:
        raise WrongRequest(f"--to: {to} cannot be written: {error.strerror or error}") from None


def planned(settings: Settings, request: MigRequest) -> MigPlan:
    """The plan for a settings file. Raises WrongRequest."""
    for name in (*request.need_mib, *request.profiles):
        if name not in names(settings):
            raise WrongRequest(
                f"{name!r} is not in the settings; must be one of {', '.join(names(settings))}"
            )
    gpu = _gpu(request)
    wanted = needs(settings, MemoryOverrides(request.need_mib, request.profiles, request.margin))
    able = [need for need in wanted if not need.unknown and not need.skipped]
    demands = [Demand(each.name, each.replicas, each.mib, each.profile) for each in able]
    if request.surge:
        demands += _surging(gpu, able, demands)
    plan = pack(gpu, demands, request.gpus)
    workers = manifests.workers(plan, able)
    groups = manifests.worker_groups(gpu, workers, _in_force(request.values))
    files = {
        "values.yaml": manifests.values(plan, groups, request.per_node),
        "mig-parted.yaml": manifests.mig_parted(plan, request.per_node),
        "groups.yaml": manifests.settings_groups(plan, settings),
    }
    pods = tuple(each.pods() for each in workers)
    return MigPlan(request, tuple(wanted), plan, tuple(_remarks(request, able)), files, pods)


def _gpu(request: MigRequest) -> Gpu:
    try:
        return with_usable(GPUS[request.gpu], request.usable)
    except ValueError as error:
        raise WrongRequest(f"--usable: {error}") from None


def _surging(gpu: Gpu, able: Sequence[Need], demands: Sequence[Demand]) -> list[Demand]:
    """Free slices of each profile for replicas that start while a model changes.

    They suffice for one model at a time: for the one that needs the most of a profile.
    """
    largest: dict[str, Demand] = {}
    for need, demand in zip(able, demands, strict=True):
        profile = profile_for(gpu, demand)
        if isinstance(profile, Profile) and need.surge:
            known = largest.get(profile.name, Demand("", 0, 0))
            largest[profile.name] = Demand(
                f"surge on {profile.name}", max(need.surge, known.replicas), 0, profile.name
            )
    return list(largest.values())


def _in_force(values: Path | None) -> list[Mapping[str, Any]]:
    """The worker groups of the chart's values. Raises WrongRequest."""
    if values is None:
        return []
    try:
        data = yaml.safe_load(values.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise WrongRequest(f"--values: {values} cannot be read as YAML: {error}") from None
    groups = (data.get("workerGroups") or []) if isinstance(data, dict) else None
    if not isinstance(groups, list) or not all(isinstance(each, dict) for each in groups):
        raise WrongRequest(f"--values: {values} has no list of mappings under workerGroups")
    return groups


def _remarks(request: MigRequest, able: Sequence[Need]) -> list[str]:
    said = [f"{need.name}: {remark}" for need in able for remark in need.remarks]
    surging = [need.name for need in able if need.surge]
    if surging and not request.surge:
        said.append(
            f"a change of {', '.join(surging)} starts replicas beside the old ones, which wait for "
            "a free slice: plan with --surge, or set replicas.surge_percent to 0"
        )
    return said


def _text(name: str, data: Any) -> str:
    return f"# {HEADINGS[name]}\n{yaml.safe_dump(data, sort_keys=False)}"
