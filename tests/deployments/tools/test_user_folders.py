"""What a process without a home, an account or room for sockets gets, and what is left as it is."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from click.testing import CliRunner

from deployments.cli import main
from deployments.tools import user_folders
from deployments.tools.user_folders import mended

NOBODY = 4_000_000_001  # no account has this id


@pytest.fixture(autouse=True)
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(user_folders, "_SHORT", tmp_path)
    return tmp_path


def test_an_environment_that_has_all_is_left_alone() -> None:
    environ = {"HOME": "/home/me", "USER": "me", "TMPDIR": "/var/tmp"}
    assert list(mended(environ, NOBODY)) == []
    assert environ == {"HOME": "/home/me", "USER": "me", "TMPDIR": "/var/tmp"}


def test_who_has_an_account_needs_no_variable() -> None:
    environ: dict[str, str] = {}
    assert list(mended(environ, pwd.getpwall()[0].pw_uid)) == []
    assert environ == {}


def test_without_home_and_account_there_is_a_private_one_and_a_name(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_folders, "_account", lambda uid: None)
    environ: dict[str, str] = {}
    uid = os.getuid()
    (said,) = mended(environ, uid)
    home = short / f"headrace-home-{uid}"
    assert environ == {"USER": f"uid-{uid}", "HOME": str(home)}
    assert home.stat().st_mode & 0o777 == 0o700
    assert f"{home} is the home folder; set HOME" in said
    assert len(list(mended({}, uid))) == 1  # the same again


def test_a_home_that_others_may_enter_is_refused(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_folders, "_account", lambda uid: None)
    uid = os.getuid()
    made = short / f"headrace-home-{uid}"
    made.mkdir(mode=0o755)
    made.chmod(0o755)
    with pytest.raises(PermissionError, match="set HOME"):
        list(mended({}, uid))
    made.rmdir()
    made.symlink_to(short)
    with pytest.raises(PermissionError, match="set HOME"):
        list(mended({}, uid))


@pytest.mark.parametrize("name", ["TMPDIR", "RAY_TMPDIR"])
@pytest.mark.parametrize(("length", "kept"), [(0, True), (36, True), (37, True), (38, False)])
def test_a_folder_that_leaves_no_room_for_sockets_is_not_used(
    short: Path, name: str, length: int, kept: bool
) -> None:
    given = "/" + "t" * (length - 1) if length else ""
    environ = {"HOME": "/", "USER": "me", name: given}
    said = list(mended(environ, NOBODY))
    assert environ[name] == (given if kept else str(short))
    assert [name in each for each in said] == ([] if kept else [True])


def test_the_command_line_says_what_it_mends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/tmp/" + "t" * 90)
    result = CliRunner().invoke(main, ["check", str(tmp_path / "none.yaml")])
    assert result.stderr.startswith("TMPDIR is too long")
    assert os.environ["TMPDIR"] == str(tmp_path)
