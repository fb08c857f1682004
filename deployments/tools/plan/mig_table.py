"""Prints a MIG plan: the slice of each replica, memory needs, unused memory, replicas without one.

Memory is in MiB. The plan is the caller's; this module only adds up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autoscaling.mig.geometry import Profile
from autoscaling.mig.packing import PlannedGpu, Slice
from deployments.tools.plan import manifests
from deployments.tools.plan.needs import Need
from deployments.tools.plan.types import MigPlan

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


def as_json(made: MigPlan) -> str:
    plan = made.plan
    return json.dumps({
        "gpu": plan.gpu.name,
        "gpus": [_gpu(gpu) for gpu in plan.gpus],
        "at_least": plan.at_least,
        "proved": plan.proved,
        "needs": [_need(need) for need in made.needs],
        "rejected": [
            {"model": each.demand.name, "replicas": each.replicas, "reason": each.reason}
            for each in plan.rejected
        ] + [
            {"model": need.name, "replicas": need.replicas, "reason": need.unknown}
            for need in made.needs if need.unknown
        ],
        "remarks": list(made.remarks),
        "pods": list(made.pods),
        "files": made.files,
    }, indent=2)  # fmt: skip


def _gpu(gpu: PlannedGpu) -> dict[str, Any]:
    return {
        "slices": [
            {
                "profile": each.profile.name,
                "start": each.placement.start,
                "size": each.profile.shape.size,
                "model": each.demand.name,
                "replica": each.number,
                "need_mib": each.demand.need_mib,
                "usable_mib": each.profile.usable_mib,
            }
            for each in gpu.slices
        ],
        "free_compute_slices": gpu.free_compute,
        "uncut_mib": gpu.uncut_mib,
        "spare_mib": gpu.spare_mib,
        "room": [[each.name for each in choice] for choice in gpu.room],
    }


def _need(need: Need) -> dict[str, Any]:
    return {
        "model": need.name,
        "replicas": need.replicas,
        "mib": need.mib,
        "profile": need.profile,
        "parts": [
            {"name": part.name, "mib": part.mib, "how": part.how, "text": part.text}
            for part in need.parts
        ],
        "unknown": need.unknown,
        "skipped": need.skipped,
    }
