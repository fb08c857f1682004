from __future__ import annotations

import json
from typing import Any

import pytest

from deployments.control import manual_target
from deployments.control.manual_target import ManualTarget
from deployments.control.ray_jobs import JobFailed
from deployments.tools import scale
from deployments.tools.control import ServerRefused

TARGET = ManualTarget("m", "gpu", 3)


class Jobs:
    """Ray's jobs; what it was told, and what the job prints."""

    def __init__(self, output: str) -> None:
        self.output = output
        self.commands: list[str] = []

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, command: str, timeout_s: float) -> str:
        self.commands.append(command)
        return self.output


def printed(answer: dict[str, Any]) -> str:
    return f"some warning\n{manual_target.MARK}{json.dumps(answer)}\n"


def test_a_cluster_is_told_by_a_job(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    jobs = Jobs(printed({"model": "m", "group": "gpu", "replicas": 3}))
    monkeypatch.setattr(scale, "jobs_of", lambda address: jobs)
    assert scale.scale_on_cluster(TARGET, "http://head") == 0
    (command,) = jobs.commands
    assert command.startswith("python -m deployments.control.manual_target '{")
    assert '"replicas": 3' in command
    said = "m, group gpu: 3 replicas, until `headrace scale m auto --group gpu`\n"
    assert capsys.readouterr().out == said


def test_a_refusal_or_a_job_that_says_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "jobs_of", lambda address: Jobs(printed({"error": "no such"})))
    with pytest.raises(ServerRefused, match="no such"):
        scale.scale_on_cluster(TARGET, "http://head")
    monkeypatch.setattr(scale, "jobs_of", lambda address: Jobs("Traceback"))
    with pytest.raises(JobFailed, match="printed no answer"):
        scale.scale_on_cluster(TARGET, "http://head")


def test_automatic_again_says_so(capsys) -> None:
    assert scale._say(ManualTarget("m"), {"replicas": None}) == 0
    assert capsys.readouterr().out == "m: as many replicas as its policy decides\n"
