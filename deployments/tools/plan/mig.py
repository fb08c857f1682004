"""`headrace plan mig`: packs a settings file's replicas onto MIG slices of GPUs.

Reads the file, computes the memory that each replica needs, packs the replicas onto slices, prints
the plan (the slice of each replica, memory needs, unused memory, replicas without one; MiB) and
writes files for a cluster. It starts no model and needs no GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autoscaling.mig.geometry import GPUS, Gpu, Profile, with_usable
from autoscaling.mig.packing import Packing, PlannedGpu, SliceDemand, pack, profile_for
from deployments.settings.tree import Settings
from deployments.settings_files.load import load
from deployments.tools.plan import manifests
from deployments.tools.plan.manifests import MigPlan, MigRequest
from deployments.tools.plan.needs import MemoryOverrides, Need, names, needs

HEADINGS = {
    "values.yaml": "for the chart, after the settings file; keep the worker groups' order",
    "mig-parted.yaml": "the MIG manager's config.yaml",
    "groups.yaml": "for the settings file: which slice each replica asks for",
}


class WrongRequest(click.UsageError):
    """An option is wrong; the message says how."""


def plan_mig(file: Path, request: MigRequest, *, to: Path | None) -> int:
    """Prints the plan and writes its files into the folder `to`.

    Returns the exit code: 1 if a replica has no slice. Raises SettingsErrors and WrongRequest.
    """
    made = planned(load(file, here=False), request)
    if to is not None:
        _write(made, to)
    show(made)
    return 0 if made.complete else 1


def _write(made: MigPlan, to: Path) -> None:
    """Writes the plan's files into the folder `to`. Raises WrongRequest."""
    try:
        to.mkdir(parents=True, exist_ok=True)
        for name, data in made.files.items():
            text = f"# {HEADINGS[name]}\n{yaml.safe_dump(data, sort_keys=False)}"
            (to / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise WrongRequest(f"--to: {to} cannot be written: {error.strerror or error}") from None


def planned(settings: Settings, request: MigRequest) -> MigPlan:
    """The plan for a settings file. Raises WrongRequest."""
    for name in (*request.need_mib, *request.profiles):
        if name not in names(settings):
            raise WrongRequest(
                f"{name!r} is not in the settings; must be one of {', '.join(names(settings))}"
            )
    fleet = _fleet(request)
    overrides = MemoryOverrides(request.need_mib, _profiles(request), request.margin)
    wanted = needs(settings, overrides)
    able = [need for need in wanted if not need.unknown and not need.skipped]
    plans = _plans(fleet, able, request)
    workers = manifests.workers(plans, able, request)
    groups = manifests.worker_groups(request.gpu, workers, _in_force(request.values))
    files = {"values.yaml": manifests.values(plans, groups, request)}
    if request.devices != "gke":
        files["mig-parted.yaml"] = manifests.mig_parted(plans, request.per_node)
    files["groups.yaml"] = manifests.settings_groups(plans, settings, request.gpu)
    return MigPlan(request, tuple(wanted), plans, tuple(_remarks(request, able)), files)


def _fleet(request: MigRequest) -> dict[str, Gpu]:
    """The GPUs' models with what nodes say of their slices. Raises WrongRequest."""
    told: dict[str, dict[str, int]] = {name: {} for name in request.gpu}
    for key, mib in request.usable.items():
        gpu, _, profile = key.rpartition(":")
        have = [name for name in told if GPUS[name].named(profile)]
        if gpu and gpu not in told:
            raise WrongRequest(f"--usable: {gpu} is not among --gpu ({', '.join(told)})")
        for name in [gpu] if gpu else have or list(told):
            told[name][profile] = mib
    for name in request.gpus:
        if name not in told:
            raise WrongRequest(f"--gpus: {name} is not among --gpu ({', '.join(told)})")
    if request.devices == "gke":
        _check_gke(request)
    try:
        return {name: with_usable(GPUS[name], usable) for name, usable in told.items()}
    except ValueError as error:
        raise WrongRequest(f"--usable: {error}") from None


def _check_gke(request: MigRequest) -> None:
    for name in request.gpu:
        if name not in manifests.GKE_ACCELERATORS:
            have = ", ".join(manifests.GKE_ACCELERATORS)
            raise WrongRequest(f"--devices gke: GKE does not partition {name}; must be of {have}")
    if request.gpus:
        raise WrongRequest(
            "--devices gke: --gpus must be left out; each profile has a node pool of its own"
        )


def _profiles(request: MigRequest) -> dict[str, str]:
    """Of each model in `--on` the profile, "" where only a GPU is named. Raises WrongRequest."""
    for name, asked in request.profiles.items():
        gpu = asked.partition(":")[0]
        if (":" in asked or asked in GPUS) and gpu not in request.gpu:
            raise WrongRequest(f"--on {name}: {gpu} is not among --gpu ({', '.join(request.gpu)})")
    return {
        name: "" if asked in GPUS else asked.rpartition(":")[2]
        for name, asked in request.profiles.items()
    }


def _plans(
    fleet: Mapping[str, Gpu], able: Sequence[Need], request: MigRequest
) -> tuple[Packing, ...]:
    found: list[Packing] = []
    for name, gpu in fleet.items():
        mine = [need for need in able if _gpu_of(need, fleet, request) == name]
        demands = [SliceDemand(each.name, each.replicas, each.mib, each.profile) for each in mine]
        if request.surge:
            demands += _surging(gpu, mine, demands)
        parts = _by_profile(gpu, demands) if request.devices == "gke" else [demands]
        found += (pack(gpu, part, request.gpus.get(name)) for part in parts)
    return tuple(found)


def _gpu_of(need: Need, fleet: Mapping[str, Gpu], request: MigRequest) -> str:
    """The GPU whose slice its replicas get: the one asked for; else, of those with the profile that
    was asked for, the first; else the one whose smallest slice that holds a replica is smallest."""
    asked = request.profiles.get(need.name, request.profiles.get(need.model, ""))
    gpu = asked if asked in GPUS else asked.rpartition(":")[0]
    gpu = gpu or manifests.marked(need.resources, request.gpu)
    if gpu:
        return gpu
    if need.profile:
        return next((name for name in fleet if fleet[name].named(need.profile)), request.gpu[0])
    holding = [(p.usable_mib or 0, n) for n, g in enumerate(fleet.values())
               if (p := g.smallest(need.mib))]  # fmt: skip
    return request.gpu[min(holding)[1] if holding else 0]


def _by_profile(gpu: Gpu, demands: Sequence[SliceDemand]) -> list[list[SliceDemand]]:
    """Those of one profile together, since all GPUs of a node pool are cut alike; those without one
    are last."""
    found: dict[str, list[SliceDemand]] = {
        name: [] for name in (*(p.name for p in gpu.profiles), "")
    }
    for demand in demands:
        profile = profile_for(gpu, demand)
        found[profile.name if isinstance(profile, Profile) else ""].append(demand)
    return [each for each in found.values() if each] or [[]]


def _surging(gpu: Gpu, able: Sequence[Need], demands: Sequence[SliceDemand]) -> list[SliceDemand]:
    """Free slices of each profile for replicas that start while a model changes.

    They suffice for one model at a time: for the one that needs the most of a profile.
    """
    largest: dict[str, SliceDemand] = {}
    for need, demand in zip(able, demands, strict=True):
        profile = profile_for(gpu, demand)
        if isinstance(profile, Profile) and need.surge:
            known = largest.get(profile.name, SliceDemand("", 0, 0))
            largest[profile.name] = SliceDemand(
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


_MAX_CHOICES = 3


def show(made: MigPlan, console: Console | None = None) -> None:
    """Prints tables of slices and needs, then sentences on what is not planned."""
    target = console or Console()
    if _gpus(made):
        target.print(_slices(made))
        for line in _waste(made) if made.request.devices != "gke" else ():
            target.print(Text(line), soft_wrap=True)
    if any(need.parts for need in made.needs):
        target.print()
        target.print(_needs(made))
    for sentence in _outcome(made):
        target.print(sentence, soft_wrap=True)


def _table(*headings: str, right: int) -> Table:
    """The last `right` columns are numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        is_number = number >= len(headings) - right
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=is_number)
    return table


def _gpus(made: MigPlan) -> list[tuple[str, PlannedGpu]]:
    """Each GPU with its number, which a fleet of several models counts apart."""
    gpus = [gpu for plan in made.plans for gpu in plan.gpus]
    if len(made.request.gpu) == 1:
        return [(str(number), gpu) for number, gpu in enumerate(gpus)]
    count = {name: itertools.count() for name in made.request.gpu}
    return [(f"{gpu.gpu.name} {next(count[gpu.gpu.name])}", gpu) for gpu in gpus]


def _slices(made: MigPlan) -> Table:
    table = _table("GPU", "SLICE", "AT", "REPLICA", "NEEDS", "HOLDS", "SPARE", right=3)
    for number, gpu in _gpus(made):
        for each in gpu.slices:
            covers = gpu.gpu.slices(each.placement)
            at = str(covers[0]) if len(covers) == 1 else f"{covers[0]}-{covers[-1]}"
            table.add_row(
                number, each.profile.name, at, f"{each.demand.name} #{each.number}",
                f"{each.demand.need_mib:,}", f"{each.profile.usable_mib or 0:,}",
                f"{each.spare_mib:,}",
            )  # fmt: skip
    return table


def _waste(made: MigPlan) -> Iterator[str]:
    for number, gpu in _gpus(made):
        memory = "?" if gpu.uncut_mib is None else f"{gpu.uncut_mib:,}"
        yield (
            f"GPU {number}: {gpu.free_compute} of {gpu.gpu.compute_slices} compute slices and "
            f"{memory} MiB in no slice, {_room(gpu)}; {gpu.spare_mib:,} MiB spare in slices"
        )


def _room(gpu: PlannedGpu) -> str:
    if not gpu.room:
        return "which nothing can use" if gpu.free_compute or gpu.uncut_mib else "all is cut"
    choices = [" + ".join(_counted(choice)) for choice in gpu.room[:_MAX_CHOICES]]
    more = ", …" if len(gpu.room) > _MAX_CHOICES else ""
    return f"room for {' or '.join(choices)}{more}"


def _counted(choice: tuple[Profile, ...]) -> list[str]:
    names = [each.name for each in reversed(choice)]  # the largest first
    return [
        name if names.count(name) == 1 else f"{names.count(name)} x {name}"
        for name in dict.fromkeys(names)
    ]


def _needs(made: MigPlan) -> Table:
    table = _table("MODEL", "PART", "FROM", "HOW", "MIB", right=1)
    for need in made.needs:
        for number, part in enumerate(need.parts):
            name = need.name if number == 0 else ""
            table.add_row(Text(name, style="bold"), part.name, part.how, part.text, f"{part.mib:,}")
        if len(need.parts) > 1:
            how = f"with {need.margin * 100:g} % on all that is not given"
            table.add_row("", "in all", "", how, f"{need.mib:,}")
    return table


def _outcome(made: MigPlan) -> Iterator[Text]:
    for need in made.needs:
        if need.skipped:
            yield Text.assemble((need.name, "bold"), f" is not planned: {need.skipped}")
    for need in made.needs:
        if need.unknown:
            yield Text.assemble((need.name, "bold red"), f" has no place: {need.unknown}")
    for each in (each for plan in made.plans for each in plan.rejected):
        number = f"{each.replicas} of {each.demand.replicas}"
        yield Text.assemble((each.demand.name, "bold red"), f" ({number}) {each.reason}")
    for remark in made.remarks:
        yield Text(remark, style="yellow")
    for plan in made.plans:
        yield Text(_summary(plan), style="bold")
    if made.request.devices == "gke":
        for command in manifests.node_pools(made.plans, made.request.per_node):
            yield Text(command)
        return
    for node, (layout, _) in enumerate(manifests.nodes(made.plans, made.request.per_node)):
        yield Text(f"node {node}: kubectl label node NODE nvidia.com/mig.config={layout}")


def _summary(plan: Packing) -> str:
    number = len(plan.gpus)
    placed = sum(len(gpu.slices) for gpu in plan.gpus)
    if plan.proved:
        why = "no fewer hold them"
    else:
        why = f"at least {plan.at_least} are needed; whether fewer than {number} do is not known"
    return f"{placed} slices on {number} x {plan.gpu.name}: {why}"
