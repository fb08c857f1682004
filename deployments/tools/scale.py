"""`headrace scale MODEL N|auto`: sets a model's number of replicas by hand, here or on a cluster.

The number holds until `auto`, also when the autoscaler restarts or a settings file is applied.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from typing import Any

import click

from deployments.control import manual_target
from deployments.control.manual_target import ManualTarget
from deployments.control.ray_jobs import JobFailed
from deployments.control.supervisor.server_files import commands_audit_file, find, state_folder
from deployments.process import audit
from deployments.process.audit import AuditLine
from deployments.tools.cluster import jobs_of
from deployments.tools.control import ServerRefused, ask

_JOB_S = 60.0
_PYTHON = "python"


def scale_locally(target: ManualTarget, port: int | None) -> int:
    """Set the number on this machine, by its host. Raises NoServer and ServerRefused."""
    state = find(port, state_folder())
    return _say(target, ask(state.port, {"do": "scale", **asdict(target)}))


def scale_on_cluster(target: ManualTarget, address: str) -> int:
    """Set the number on a cluster, by a Ray job. Raises ClusterError and ServerRefused."""
    told = shlex.quote(json.dumps(asdict(target)))
    line = AuditLine(audit.user(), "scale", str(target), address)
    with audit.audited(line, commands_audit_file(state_folder())):
        with jobs_of(address) as jobs:
            output = jobs.run(f"{_PYTHON} -m {manual_target.__name__} {told}", _JOB_S)
        answer = manual_target.read(output)
        if answer is None:
            raise JobFailed("the job printed no answer", output)
        if "error" in answer:
            raise ServerRefused(answer["error"])
    return _say(target, answer)


def _say(target: ManualTarget, answer: dict[str, Any]) -> int:
    what = f"{target.model}, group {target.group}" if target.group else target.model
    if answer["replicas"] is None:
        click.echo(f"{what}: as many replicas as its policy decides")
    else:
        group = f" --group {target.group}" if target.group else ""
        click.echo(
            f"{what}: {answer['replicas']} replicas, until `headrace scale {target.model} auto"
            f"{group}`"
        )
    return 0
