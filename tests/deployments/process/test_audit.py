"""Audit lines: only ever appended, readable by their owner alone, and never in a change's way."""

from __future__ import annotations

import json
import logging
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.process import audit
from deployments.process.audit import AUDIT_FILE, AuditLine, audited, record

LINE = AuditLine("key root", "freeze", "controllers: frozen", "gateway, 10.0.0.1", before="1a")


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[logging.LogRecord]:
    monkeypatch.delenv(AUDIT_FILE, raising=False)
    lines: list[logging.LogRecord] = []
    monkeypatch.setattr(audit.logger, "handle", lines.append)
    return lines


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_says_who_did_what_and_what_came_of_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "audit.jsonl"
    for _ in range(2):
        record(LINE, path)
    first, second = lines_of(path)
    assert first.pop("time").endswith("Z")
    assert first == {
        "actor": "key root", "verb": "freeze", "object": "controllers: frozen",
        "source": "gateway, 10.0.0.1", "before": "1a", "outcome": "done",
    }  # fmt: skip
    assert second["actor"] == "key root"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_line_is_one_line_whatever_is_in_it(tmp_path: Path) -> None:
    record(replace(LINE, object='a\n{"actor": "me"}\x1b[2J', detail="x" * 10_000), tmp_path / "a")
    (only,) = (tmp_path / "a").read_bytes().splitlines()
    assert b"\x1b" not in only
    assert len(only) < 1000


def test_the_environments_file_is_taken_where_none_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(AUDIT_FILE, str(tmp_path / "a"))
    record(LINE)
    assert len(lines_of(tmp_path / "a")) == 1


def test_without_a_file_it_is_a_log_line_at_any_level(logged: list[logging.LogRecord]) -> None:
    logging.getLogger("headrace").setLevel(logging.ERROR)
    try:
        record(LINE)
    finally:
        logging.getLogger("headrace").setLevel(logging.INFO)
    (only,) = logged
    assert (only.verb, only.actor) == ("freeze", "key root")  # type: ignore[attr-defined]


def test_a_line_that_cannot_be_written_is_logged_and_stops_nothing(
    tmp_path: Path, logged: list[logging.LogRecord]
) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    record(LINE, folder)
    assert [each.levelname for each in logged] == ["ERROR", "INFO"]


def test_what_fails_leaves_a_line_too(tmp_path: Path) -> None:
    with pytest.raises(KeyError), audited(LINE, tmp_path / "a"):
        raise KeyError("gone")
    with audited(LINE, tmp_path / "a") as instead:
        instead(replace(LINE, after="2b"))
    failed, done = lines_of(tmp_path / "a")
    assert (failed["outcome"], failed["detail"]) == ("failed", "KeyError: 'gone'")
    assert (done["outcome"], done["after"]) == ("done", "2b")


def test_a_key_that_was_taken_for_its_id_is_not_written_down() -> None:
    assert audit.nameable("hr_secret") == "?"
    assert audit.nameable("5d9f47c36b997ef4d375eed037a63981a2d69842489063a9f7653b3a94d361a6") == "?"
    assert audit.nameable("laptop") == "laptop"
    assert audit.nameable("3f0c91ab77de") == "3f0c91ab77de"


def test_users_are_named_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert audit.user().endswith(f"({os.getuid()})")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000 - 1)
    assert audit.user() == f"user ? ({4_000_000_000 - 1})"
