"""`headrace plan mig`: packs a settings file's replicas onto MIG slices of GPUs.

Reads the file, computes the memory that each replica needs, packs the replicas onto slices, prints
the plan (the slice of each replica, memory needs, unused memory, replicas without one; MiB) and
writes files for a cluster. It starts no model and needs no GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autoscaling.mig.geometry import GPUS, Gpu, Profile, with_usable
from autoscaling.mig.packing import PlannedGpu, Slice, SliceDemand, pack, profile_for
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
    gpu = _gpu(request)
    wanted = needs(settings, MemoryOverrides(request.need_mib, request.profiles, request.margin))
    able = [need for need in wanted if not need.unknown and not need.skipped]
    demands = [SliceDemand(each.name, each.replicas, each.mib, each.profile) for each in able]
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
    return MigPlan(request, tuple(wanted), plan, tuple(_remarks(request, able)), files)


def _gpu(request: MigRequest) -> Gpu:
    try:
        return with_usable(GPUS[request.gpu], request.usable)
    except ValueError as error:
        raise WrongRequest(f"--usable: {error}") from None


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
    if made.plan.gpus:
        target.print(_slices(made))
        for line in _waste(made):
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


def _slices(made: MigPlan) -> Table:
    table = _table("GPU", "SLICE", "AT", "REPLICA", "NEEDS", "HOLDS", "SPARE", right=3)
    for number, gpu in enumerate(made.plan.gpus):
        for each in gpu.slices:
            table.add_row(
                str(number), each.profile.name, _at(each), f"{each.demand.name} #{each.number}",
                f"{each.demand.need_mib:,}", f"{each.profile.usable_mib or 0:,}",
                f"{each.spare_mib:,}",
            )  # fmt: skip
    return table


def _at(each: Slice) -> str:
    """The memory slices that it occupies: `4-7`."""
    covers = each.placement.covers
    return str(covers[0]) if len(covers) == 1 else f"{covers[0]}-{covers[-1]}"


def _waste(made: MigPlan) -> Iterator[str]:
    for number, gpu in enumerate(made.plan.gpus):
        memory = "?" if gpu.uncut_mib is None else f"{gpu.uncut_mib:,}"
        yield (
            f"GPU {number}: {gpu.free_compute} of 7 compute slices and {memory} MiB in no slice, "
            f"{_room(gpu)}; {gpu.spare_mib:,} MiB spare in slices"
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
    for each in made.plan.rejected:
        number = f"{each.replicas} of {each.demand.replicas}"
        yield Text.assemble((each.demand.name, "bold red"), f" ({number}) {each.reason}")
    for remark in made.remarks:
        yield Text(remark, style="yellow")
    yield Text(_summary(made), style="bold")
    for node, (layout, _) in enumerate(manifests.nodes(made.plan, made.request.per_node)):
        yield Text(f"node {node}: kubectl label node NODE nvidia.com/mig.config={layout}")


def _summary(made: MigPlan) -> str:
    number, plan = len(made.plan.gpus), made.plan
    placed = sum(len(gpu.slices) for gpu in plan.gpus)
    if plan.proved:
        why = "no fewer hold them"
    else:
        why = f"at least {plan.at_least} are needed; whether fewer than {number} do is not known"
    return f"{placed} slices on {number} x {plan.gpu.name}: {why}"
