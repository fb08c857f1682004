"""The Dockerfile keeps its rules and the linter's; a builder is sent what it needs and no more."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pathspec
import pytest

from tests.image.dockerfile import DOCKERFILE, ROOT, Step, assignments, stages, way
from tests.image.rules import IMAGES, PROJECT, complaints

TEXT = DOCKERFILE.read_text()
READ = """ARG BASE=debian:12.1-slim
FROM ${BASE} AS one
# said by the way
RUN echo "${HOME}" \\
    && true
FROM one AS two
ARG VERSION=3
LABEL version="${VERSION}"
"""
FAULTS = {
    "a base that moves": ("debian:12.15-slim", "debian:latest", "neither a release"),
    "no user": ("USER 10001:10001", "", "USER is []"),
    "root": ("USER 10001:10001", "USER 0:0", "USER is ['0:0']"),
    "a user of another number": ("--uid 10001", "--uid 1000", "nobody makes user 10001"),
    "a step after the user": ("USER 10001:10001", "USER 10001:10001\nRUN true", "after USER"),
    "no wget": (" wget ", " ", "wget is not installed"),
    "setuid stays": ("chmod ug-s", "chmod ug+s", "keeps setuid"),
    "package files stay": ("apt-get clean", "true", "the files of Debian's packages stay"),
    "packages elsewhere": ("/image/usr/local /usr/local", "/image /", "not copied"),
    "any file will do": ("--require-hashes", "", "not compared"),
    "pip resolves": ("--no-deps", "", "no lock names"),
    "a lock is left out": ("-r requirements/stores.lock", "", "must install"),
    "a slow core": ("HEADRACE_COMPILE=1 ", "", "its core is not compiled"),
    "another version": ("VERSION=0.1.0", "VERSION=0.2.0", "version 0.2.0"),
    "another command": ('["headrace"', '["sh"', "CMD starts sh"),
    "a token": ("ENV LANG=C.UTF-8", "ENV HF_TOKEN=abc", "HF_TOKEN looks like a secret"),
}


def test_it_keeps_its_rules():
    assert list(complaints(stages())) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(tmp_path: Path, fault: str):
    was, now, said = FAULTS[fault]
    assert was in TEXT
    path = tmp_path / "Dockerfile"
    path.write_text(TEXT.replace(was, now))
    assert any(said in each for each in complaints(stages(path)))


def test_the_linter_finds_nothing():
    program = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run(
        [program, "--config", ROOT / ".hadolint.yaml", DOCKERFILE], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


def sent(root: Path) -> Iterator[str]:
    """Paths that .dockerignore leaves; its patterns mean the same to Git and to Docker: names at
    the top, and what `**/` begins."""
    lines = [
        line if line.startswith(("#", "**/")) or not line
        else f"!/{line[1:]}" if line.startswith("!") else f"/{line}"
        for line in (ROOT / ".dockerignore").read_text().splitlines()
    ]  # fmt: skip
    ignored = pathspec.PathSpec.from_lines("gitwildmatch", lines)
    for folder, below, names in os.walk(root):
        here = Path(folder).relative_to(root)
        below[:] = [each for each in below if not ignored.match_file(f"{here / each}/")]
        yield from (str(here / name) for name in names if not ignored.match_file(here / name))


def test_a_builder_is_sent_the_packages_and_nothing_else():
    found = set(sent(ROOT))
    project, packages = PROJECT["project"], PROJECT["tool"]["setuptools"]["packages"]["find"]
    folders = {each.rstrip("*") for each in packages["include"]}
    files = {"pyproject.toml", "setup.py", project["readme"], *project["license-files"]}
    assert {each.partition("/")[0] for each in found} == folders | files | {"requirements"}
    assert {f"requirements/{lock}.lock" for locks in IMAGES.values() for lock in locks} <= found
    assert not [each for each in found if each.endswith(".pyc")]


def test_what_is_nobodys_business_stays(tmp_path: Path):
    for name in (".env", "out/keys.yaml", ".git/config", "deployments/__pycache__/a.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list(sent(tmp_path)) == []


def test_a_dockerfile_is_read_as_a_builder_reads_it(tmp_path: Path):
    path = tmp_path / "Dockerfile"
    path.write_text(READ)
    known = stages(path)
    assert [(each.name, each.base) for each in way("two", known)] == [
        ("one", "debian:12.1-slim"),
        ("two", "one"),
    ]
    assert known["two"].steps == [Step("LABEL", 'version="3"')]
    (command,) = known["one"].values("RUN")
    assert command.split() == ["echo", '"${HOME}"', "&&", "true"]
    assert assignments('A=1 B="two words" C=') == {"A": "1", "B": "two words", "C": ""}
