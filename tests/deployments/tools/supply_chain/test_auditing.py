"""What an audit says of locks that the registry no longer bears out."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deployments.tools.supply_chain import auditing, bills, locking
from deployments.tools.supply_chain.__main__ import main
from deployments.tools.supply_chain.lock_sets import SETS, Locked, parsed

TEXTS = {each.name: each.path.read_text() for each in SETS}
OTHER = "sha256:" + "0" * 64
FIRST = next(parsed(TEXTS["kube"]))


def with_first(package: Locked | None) -> dict[str, str]:
    """The locks as the registry would have them, the first package of one of them changed."""
    others = [each for each in parsed(TEXTS["kube"]) if each != FIRST]
    made = [*others, *([package] if package else ())]
    return TEXTS | {"kube": "".join(f"{each}\n" for each in made)}


def late(command: list[str], timeout: float, **_: Any) -> None:
    """A program that does not end in time."""
    raise subprocess.TimeoutExpired(command, timeout)


def test_nothing_is_wrong_with_locks_that_are_made_the_same_again():
    assert auditing.of_registry(TEXTS, []) == []


def test_a_new_file_of_a_release_is_no_complaint():
    more = replace(FIRST, digests=(*FIRST.digests, OTHER))
    assert auditing.of_registry(with_first(more), []) == []


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (None, "is not needed any more"),
        (replace(FIRST, version="99"), "cannot be had any more, 99 can"),
        (replace(FIRST, digests=(OTHER,)), f"no file any more with {FIRST.digests[0]}"),
    ],
)  # fmt: skip
def test_what_the_registry_has_otherwise_is_named(now: Locked | None, said: str):
    (complaint,) = auditing.of_registry(with_first(now), [])
    assert complaint.startswith(f"kube.lock: {FIRST.name}=={FIRST.version}")
    assert said in complaint


def test_a_package_that_is_needed_now_and_not_locked_is_named():
    more = Locked("newcomer", "1.0", "sys_platform == 'linux'", (OTHER,))
    now = TEXTS | {"kube": TEXTS["kube"] + f"{more}\n"}
    (complaint,) = auditing.of_registry(now, [])
    assert complaint == (
        "kube.lock: newcomer==1.0, sys_platform == 'linux' is needed and not there; run `make lock`"
    )


def test_yanked_releases_are_named_once():
    warnings = ['warning: `one==1` is yanked (reason: "bad")', "warning: something else"]
    assert auditing.of_registry(TEXTS, warnings * 2) == [warnings[0]]


def test_packages_that_nobody_looked_up_do_not_count_as_sound():
    said = auditing.summary([], [], {(FIRST.name, FIRST.version)})
    assert "1 packages were NOT looked up" in said
    assert "NOT" not in auditing.summary([], [], set())


def test_a_list_of_weaknesses_that_does_not_come_leaves_packages_unheard(monkeypatch, tmp_path):
    monkeypatch.setattr(auditing.subprocess, "run", late)
    known, unheard = auditing.vulnerabilities(tmp_path)
    assert known == []
    assert (FIRST.name, FIRST.version) in unheard


UNHEARD = {(FIRST.name, FIRST.version)}


@pytest.mark.parametrize(
    ("found", "known", "unheard", "code"),
    [
        ([], [], set(), 0),
        (["one is yanked"], [], set(), 1),
        ([], ["one: a weakness"], UNHEARD, 1),
        (["one is yanked"], [], UNHEARD, 1),
        ([], [], UNHEARD, 2),
    ],
)
def test_the_command_ends_with_what_it_found(
    monkeypatch: pytest.MonkeyPatch,
    found: list[str],
    known: list[str],
    unheard: set[auditing.Package],
    code: int,
):
    monkeypatch.setattr(locking.Locker, "texts", lambda _: TEXTS)
    monkeypatch.setattr(auditing, "of_registry", lambda *_: found)
    monkeypatch.setattr(auditing, "vulnerabilities", lambda _: (known, unheard))
    ended = CliRunner().invoke(main, ["audit"])
    assert ended.exit_code == code, ended.output
    assert all(each in ended.output for each in [*found, *known])
    assert ("NOT looked up" in ended.output) == bool(unheard)


def test_the_command_says_why_there_are_no_locks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(locking.subprocess, "run", late)
    ended = CliRunner().invoke(main, ["audit"])
    assert ended.exit_code == 1
    assert "uv had no answer for union within 600 s" in ended.output


def test_the_command_says_why_there_is_no_bill(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(bills.subprocess, "run", late)
    ended = CliRunner().invoke(main, ["bill", str(tmp_path)])
    assert ended.exit_code == 1
    assert "cyclonedx-py did not end within 300 s" in ended.output


@pytest.mark.parametrize(
    ("version", "named"),
    [
        ((3, 11, 7), ["CVE-2024-6232", "CVE-2024-0450"]),
        ((3, 11, 8), ["CVE-2024-6232"]),
        ((3, 11, 10), []),
        ((3, 12, 1), ["CVE-2024-6232", "CVE-2024-0450"]),
        ((3, 13, 0), []),
        ((3, 14, 0), []),
    ],
)
def test_weaknesses_of_the_interpreter_are_named(version, named):
    said = auditing.interpreter(version)
    assert [line.partition(": ")[2].split(" ")[0] for line in said] == named
