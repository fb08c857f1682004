"""The locks as they are committed: whole, in agreement, and what pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import Distribution, distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from deployments.tools.supply_chain.lock_sets import (
    BY_NAME,
    FOLDER,
    ROOT,
    SETS,
    Locked,
    LockSet,
    canonical,
    parsed,
)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WHEEL, SOURCE = "sha256:" + "a" * 64, "sha256:" + "b" * 64
each_set = pytest.mark.parametrize("each", SETS, ids=lambda each: each.name)


def packages(each: LockSet) -> list[Locked]:
    """With those of the locks below."""
    return [p for name in (*each.upon, each.name) for p in parsed(BY_NAME[name].path.read_text())]


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
    have = {p.name: p.version for p in packages(each)}
    for wanted in declared(each):
        version = have.get(canonical(wanted.name))
        assert version is not None, f"{wanted}: run `make lock`"
        assert SpecifierSet(str(wanted.specifier)).contains(version, prereleases=True), wanted


@each_set
def test_every_package_has_digests_and_says_nothing_twice(each: LockSet):
    own = list(parsed(each.path.read_text()))
    assert own
    for package in own:
        assert package.digests
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", digest) for digest in package.digests)
    assert len({(p.name, p.marker) for p in own}) == len(own)


@each_set
def test_it_names_no_host_and_no_path(each: LockSet):
    text = each.path.read_text()
    assert not re.search(r"://|@ |--(extra-)?index|--find-links|(^|\s)/", text)


def test_locks_for_processors_agree_on_every_version():
    versions: dict[tuple[str, str], set[str]] = {}
    for each in SETS:
        if not each.cuda:
            for package in parsed(each.path.read_text()):
                versions.setdefault((package.name, package.marker), set()).add(package.version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_torchs_own_needs_are_locked():
    have = {package.name for package in packages(BY_NAME["dev"])}
    needs = {
        canonical(Requirement(line).name) for line in requires("torch") or () if "extra" not in line
    }
    assert {each for each in needs if not each.startswith(("nvidia", "cuda", "triton"))} <= have


def test_what_is_installed_here_by_locks_has_what_it_declares():
    """A registry's files of one version may declare different things; uv reads one of them."""
    ours = {p.name for s in SETS if not (s.cuda or s.alone) for p in parsed(s.path.read_text())}
    have = {canonical(each.name): each for each in distributions()}
    missing = [
        f"{name}: {wanted}"
        for name in sorted(ours & have.keys())
        for wanted in map(Requirement, have[name].requires or ())
        if (wanted.marker is None or wanted.marker.evaluate({"extra": ""}))
        and not fits(wanted, have.get(canonical(wanted.name)))
    ]
    assert missing == []


def fits(wanted: Requirement, found: Distribution | None) -> bool:
    return found is not None and wanted.specifier.contains(found.version, prereleases=True)


def test_torch_is_locked_for_gpus_alone():
    assert {s.name for s in SETS for p in parsed(s.path.read_text()) if p.name == "torch"} == {
        "cuda"
    }


def test_a_package_is_read_as_it_is_written():
    marker = "sys_platform == 'win32' and python_version < '3.12'"
    for package in (
        Locked("one", "1.2", "", (WHEEL,)),
        Locked("one-two", "1!2.0+cpu", marker, (WHEEL, SOURCE)),
    ):
        assert list(parsed(f"# made\n{package}\n")) == [package]


@pytest.mark.parametrize(
    "text", ["one>=1", "one==1.2 \\\n    --hash=md5:abc", "one", "--index-url https://example.org"]
)
def test_what_is_not_pinned_by_its_digest_is_refused(text: str):
    with pytest.raises(ValueError, match="no package with one version"):
        list(parsed(text))


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
        if line.startswith("\t$(LOCKED)")
        for n in re.findall(r"requirements/(\S+)\.lock", line)
    }
    assert used == {each.name for each in SETS} - {"stores", "cuda"}
