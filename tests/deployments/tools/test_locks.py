"""The locks as they are committed: whole, in agreement, and what pyproject.toml asks for."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Sequence
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name as canonical

from deployments.tools import locks
from deployments.tools.locks import FOLDER, ROOT, SETS, LockSet, packages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BY_NAME = {each.name: each for each in SETS}
DIGESTS = r"(?: \\\n    --hash=sha256:[0-9a-f]{64})+"
each_set = pytest.mark.parametrize("each", SETS, ids=lambda each: each.name)


def pinned(each: LockSet) -> list[Requirement]:
    return [Requirement(line) for line in packages(each.path.read_text())]


def versions(each: LockSet) -> dict[str, str]:
    """Versions by package, with those of the locks below."""
    names = (*each.upon, each.name)
    found = [package for name in names for package in pinned(BY_NAME[name])]
    return {package.name: str(package.specifier).removeprefix("==") for package in found}


def declared(each: LockSet) -> list[Requirement]:
    """What pyproject.toml asks for there, extras of ours unfolded; not torch, but with CUDA."""
    lines, extras = list(each.also), list(each.extras)
    lines += [] if each.alone else PROJECT["dependencies"]
    while extras:
        for line in PROJECT["optional-dependencies"][extras.pop()]:
            wanted = Requirement(line)
            extras += wanted.extras if wanted.name == "headrace" else ()
            lines += [] if wanted.name == "headrace" else [line]
    wanted_all = [Requirement(line) for line in lines]
    return [wanted for wanted in wanted_all if wanted.name != "torch" or each.cuda]


def test_every_lock_is_made_by_make_lock():
    assert {path.name for path in FOLDER.iterdir()} == {each.path.name for each in SETS}


@each_set
def test_it_holds_what_pyproject_asks_for(each: LockSet):
    have = versions(each)
    for wanted in declared(each):
        version = have.get(canonical(wanted.name))
        assert version is not None, f"{wanted}: run `make lock`"
        assert SpecifierSet(str(wanted.specifier)).contains(version, prereleases=True), wanted


@each_set
def test_every_package_has_digests_and_says_nothing_twice(each: LockSet):
    text = each.path.read_text()
    for line, whole in packages(text).items():
        assert re.fullmatch(r"[a-z0-9.-]+==\S+( ; .+)?", line)
        assert re.fullmatch(re.escape(line) + DIGESTS, whole)
    own = [(package.name, str(package.marker)) for package in pinned(each)]
    assert own
    assert len(set(own)) == len(own)
    assert not re.search(r"://|@ |--(extra-)?index|--find-links|(^|\s)/", text.partition("\n")[2])


def test_locks_for_processors_agree_on_every_version():
    found: dict[tuple[str, str], set[str]] = {}
    for package in (p for each in SETS if not each.cuda for p in pinned(each)):
        found.setdefault((package.name, str(package.marker)), set()).add(str(package.specifier))
    assert {name: each for name, each in found.items() if len(each) > 1} == {}


def test_torch_is_locked_for_gpus_alone_and_its_own_needs_everywhere():
    assert {s.name for s in SETS for package in pinned(s) if package.name == "torch"} == {"cuda"}
    lines = [line for line in requires("torch") or () if "extra" not in line]
    needs = {canonical(Requirement(line).name) for line in lines}
    own = {each for each in needs if not each.startswith(("nvidia", "cuda", "triton"))}
    assert own <= versions(BY_NAME["dev"]).keys()


def test_makefile_installs_by_locks_alone():
    lines = (ROOT / "Makefile").read_text().splitlines()
    installs = [line.strip() for line in lines if "$(PIP) install" in line]
    assert installs
    for line in installs:
        assert (
            "--require-hashes" in line or "--editable ." in line or line.endswith("'$(TORCH)'")
        ), line
    used = {
        n
        for line in lines
        if line.startswith(("\t$(LOCKED)", "\t$(NOT_COMPILED)"))
        for n in re.findall(r"requirements/(\S+)\.lock", line)
    }
    assert used == {each.name for each in SETS} - {"stores", "cuda"}


def test_a_lock_leaves_out_what_those_below_it_have(tmp_path: Path, monkeypatch):
    """`uv` played by a function that finds one package for all, and one named after the lock."""
    commands: list[Sequence[str]] = []

    def compile_(command: Sequence[str], **_: Any) -> None:
        commands.append(command)
        path = Path(command[-1])
        names = ("common", f"only-{path.stem}")
        path.write_text("".join(f"{name}==1 \\\n    --hash=sha256:ab\n" for name in names))

    monkeypatch.setattr(subprocess, "run", compile_)
    found = {name: {*packages(text)} for name, text in locks.locks(tmp_path, True).items()}
    assert found["build"] == found["example"] - {"only-example==1"} | {"only-build==1"}
    assert found["runtime"] == {"only-runtime==1"}
    (cuda,) = [each for each in commands if "--override" not in each and "--no-deps" not in each]
    assert "--extra=export" in cuda
