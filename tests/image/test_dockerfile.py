"""The Dockerfile keeps its rules and the linter's; a builder is sent what it needs and no more."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest

from deployments.tools.supply_chain.lock_sets import IMAGES
from tests.image import context
from tests.image.dockerfile import DOCKERFILE, ROOT, stages
from tests.image.rules import PROJECT, complaints

TEXT = DOCKERFILE.read_text()
FAULTS = {
    "a base that moves": ("debian:12.15-slim", "debian:latest", "neither a release"),
    "no user": ("USER 10001:10001", "", "USER is []"),
    "root": ("USER 10001:10001", "USER 0:0", "USER is ['0:0']"),
    "a user of another number": ("--uid 10001", "--uid 1000", "nobody makes user 10001"),
    "a step after the user": ("USER 10001:10001", "USER 10001:10001\nRUN true", "after USER"),
    "no wget": (" wget ", " ", "wget is not installed"),
    "setuid stays": ("chmod ug-s", "chmod ug+s", "keeps setuid"),
    "packages elsewhere": ("/image/usr/local /usr/local", "/image /", "not copied"),
    "any file will do": ("--require-hashes", "", "not compared"),
    "pip resolves": ("--no-deps", "", "no lock names"),
    "a lock is left out": ("-r requirements/stores.lock", "", "its bill of materials lists"),
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


def test_a_builder_is_sent_the_packages_and_nothing_else():
    sent = set(context.files())
    project, found = PROJECT["project"], PROJECT["tool"]["setuptools"]["packages"]["find"]
    packages = {each.rstrip("*") for each in found["include"]}
    files = {"pyproject.toml", "setup.py", project["readme"], *project["license-files"]}
    assert {each.partition("/")[0] for each in sent} == packages | files | {"requirements"}
    assert {f"requirements/{lock}.lock" for locks in IMAGES.values() for lock in locks} <= sent
    assert not [each for each in sent if each.endswith(".pyc")]


@pytest.mark.parametrize(
    "name", [".env", "out/keys.yaml", ".git/config", "deployments/__pycache__/a.pyc"]
)
def test_what_is_nobodys_business_stays(name: str):
    assert context.ignored().match_file(name)
