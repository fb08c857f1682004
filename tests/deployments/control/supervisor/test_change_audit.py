"""What the host is asked to change leaves a line: who, what, from which settings to which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deployments.control.supervisor.change_audit import audited_handlers, digest_of
from deployments.process.audit import AUDIT_FILE
from deployments.settings.tree import Settings

OLD = Settings.model_validate({"models": {"m": {"runtime": "synthetic"}}})
NEW = Settings.model_validate({"models": {"n": {"runtime": "synthetic"}}})


class Host:
    def __init__(self) -> None:
        self.settings = OLD

    def apply(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["path"] == "bad.yaml":
            return {"error": "gateway settings cannot change while it runs"}
        self.settings = NEW
        return {}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(AUDIT_FILE, str(tmp_path / "audit"))
    return tmp_path / "audit"


def asked(file: Path, **request: Any) -> dict[str, Any]:
    """The line of a request."""
    host = Host()
    others = {do: lambda request: {} for do in ("status", "freeze", "scale", "revoke")}
    handlers = audited_handlers({"apply": host.apply, **others}, lambda: host.settings)
    handlers[request["do"]]({"asker": "user a (7)", **request})
    found: dict[str, Any] = json.loads(file.read_text().splitlines()[-1])
    return found


def test_an_apply_tells_the_settings_before_and_after(file: Path) -> None:
    line = asked(file, do="apply", path="new.yaml")
    assert (line["actor"], line["verb"], line["object"]) == ("user a (7)", "apply", "new.yaml")
    assert (line["before"], line["after"]) == (digest_of(OLD), digest_of(NEW))
    assert digest_of(OLD) != digest_of(NEW)


def test_a_refused_apply_leaves_a_line_with_the_reason(file: Path) -> None:
    line = asked(file, do="apply", path="bad.yaml")
    assert (line["outcome"], line["before"]) == ("refused", line["after"])
    assert "cannot change while it runs" in line["detail"]


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        ({"do": "freeze", "frozen": True}, "controllers: frozen"),
        ({"do": "scale", "model": "m", "group": "", "replicas": 0}, "model m: 0"),
        ({"do": "scale", "model": "m", "group": "g", "replicas": None}, "model m group g: auto"),
        ({"do": "revoke", "key": "laptop"}, "key laptop"),
        ({"do": "revoke", "key": "hr_secret"}, "key ?"),
    ],
)
def test_every_change_names_its_object(file: Path, request_: dict[str, Any], what: str) -> None:
    assert asked(file, **request_)["object"] == what


def test_a_question_leaves_none(file: Path) -> None:
    with pytest.raises(FileNotFoundError):
        asked(file, do="status")
