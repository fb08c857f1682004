"""Locks from resolutions, with `uv` played by a function; only what changed is written."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deployments.tools.supply_chain import locking
from deployments.tools.supply_chain.lock_sets import SETS, Locked, parsed

DIGEST = "sha256:" + "a" * 64
COMMON = [
    Locked("common", "1", "", (DIGEST,)),
    Locked("windows", "2", "os_name == 'nt'", (DIGEST,)),
]


class Uv:
    """Resolves everything to `common`, `windows` and one package named after the set."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.commands: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        path = Path(command[-1])
        own = Locked(f"only-{path.stem}", "1.0", "", (DIGEST,))
        path.write_text("".join(f"{each}\n" for each in (*COMMON, own)))
        said = self.fails or "warning: `common==1` is yanked\nResolved\n"
        return subprocess.CompletedProcess(command, 1 if self.fails else 0, "", said)


@pytest.fixture
def uv(monkeypatch: pytest.MonkeyPatch) -> Uv:
    played = Uv()
    monkeypatch.setattr(locking.subprocess, "run", played)
    return played


def test_a_lock_leaves_out_what_those_below_it_have(uv: Uv, tmp_path: Path):
    texts = locking.Locker(tmp_path).texts()
    assert texts.keys() == {each.name for each in SETS}
    found = {name: {p.name for p in parsed(text)} for name, text in texts.items()}
    assert found["build"] == {"common", "windows", "only-build"}
    assert found["runtime"] == {"only-runtime"}
    assert found["kube"] == {"only-kube"}
    assert found["example"] == {"common", "windows", "only-example"}, "it stands upon none"


def test_torch_is_resolved_for_gpus_alone(uv: Uv, tmp_path: Path):
    locking.Locker(tmp_path).texts()
    resolved = [c for c in uv.commands if str(locking.ROOT / "pyproject.toml") in c]
    assert ["--override" not in command for command in resolved].count(True) == 1
    (cuda,) = [command for command in resolved if "--override" not in command]
    assert "--extra=torch" in cuda
    assert (tmp_path / "overrides.txt").read_text() == "torch ; python_version < '3'\n"


def test_versions_stay_unless_an_upgrade_is_asked_for(tmp_path: Path, monkeypatch):
    seen: list[bool] = []

    def compile_(command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        seen.append(Path(command[-1]).exists())
        Path(command[-1]).write_text("")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(locking.subprocess, "run", compile_)
    for upgrade in (False, True):
        folder = tmp_path / str(upgrade)
        folder.mkdir()
        locking.Locker(folder, upgrade).texts()
        assert set(seen) == {not upgrade}
        seen.clear()


def test_what_uv_warns_of_is_kept_and_what_it_refuses_is_raised(uv: Uv, tmp_path: Path):
    locker = locking.Locker(tmp_path)
    locker.texts()
    assert set(locker.said) == {"warning: `common==1` is yanked"}
    uv.fails = "No solution found"
    with pytest.raises(locking.CannotLock, match="No solution found"):
        locker.texts()


def test_only_what_changed_is_written(tmp_path: Path):
    assert locking.write({"one": "1", "two": "2"}, tmp_path) == ["one", "two"]
    before = (tmp_path / "one.lock").stat().st_mtime_ns
    assert locking.write({"one": "1", "two": "3"}, tmp_path) == ["two"]
    assert (tmp_path / "one.lock").stat().st_mtime_ns == before
    assert (tmp_path / "two.lock").read_text() == "3"
