"""What a step's processes are told, and what is said of one that fails; nothing is built here."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.image import folders
from tests.image.dockerfile import Stage, Step

SECRET = "of-the-registry"
INDEX = f"https://me:{SECRET}@pypi.example/simple"


class Processes:
    """Ends every command with 0, one in namespaces with `code`."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.inside: list[tuple[Sequence[str], Mapping[str, str]]] = []

    def __call__(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, **_: Any
    ) -> subprocess.CompletedProcess[str]:
        if command[0] != "unshare":
            return subprocess.CompletedProcess(command, 0, "", "")
        assert env is not None
        self.inside.append((command, env))
        return subprocess.CompletedProcess(command, self.code, "", "no room")


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> folders.Builder:
    monkeypatch.setenv("PIP_INDEX_URL", INDEX)
    steps = [Step("ENV", "A=1"), Step("RUN", "pip install one")]
    monkeypatch.setattr(folders, "stages", lambda: {"cpu": Stage("cpu", "debian:12", steps)})
    monkeypatch.setattr(folders.Builder, "_debian", lambda *_: tmp_path)
    return folders.Builder(tmp_path)


def test_a_registrys_address_is_on_no_command_line(monkeypatch, builder):
    played = Processes(0)
    monkeypatch.setattr(folders.subprocess, "run", played)
    builder.build("cpu")
    ((command, environment),) = played.inside
    assert SECRET not in " ".join(command)
    assert environment["PIP_INDEX_URL"] == INDEX
    assert environment["A"] == "1"


def test_a_step_that_fails_is_named_without_its_environment(monkeypatch, builder):
    monkeypatch.setattr(folders.subprocess, "run", Processes(3))
    with pytest.raises(folders.StepFailed) as failed:
        builder.build("cpu")
    assert str(failed.value) == "[cpu] RUN pip install one: unshare ended with 3\nno room"
