from __future__ import annotations

import io
import json

import pytest

from deployments import host
from deployments.host_process import _changes, _taken_back, _without
from deployments.settings import Settings


def settings(models, **sections) -> Settings:
    return Settings.model_validate({"models": models, **sections})


FAST = {"runtime": "synthetic", "options": {"base_ms": 1}}
SLOW = {"runtime": "synthetic", "options": {"base_ms": 9}}


def test_changes_name_what_came_went_and_differs():
    old = settings({"a": FAST, "b": FAST, "c": FAST}, tenants={"t": {}, "u": {}})
    new = settings({"a": FAST, "b": SLOW, "d": FAST}, tenants={"t": {"weight": 2}, "u": {}})
    assert _changes(old, new) == {
        "added": ["d"], "removed": ["c"], "changed": ["b"], "tenants": ["t"],
    }  # fmt: skip


def test_nothing_differs_between_equal_files():
    old = settings({"a": FAST})
    assert not any(_changes(old, settings({"a": FAST})).values())


def test_what_failed_is_what_it_was_or_not_there():
    old, new = settings({"a": FAST}), settings({"a": SLOW, "b": FAST, "c": FAST})
    kept = _without(old, new, {"a", "b"})
    assert {name: m.options["base_ms"] for name, m in kept.models.items()} == {"a": 1, "c": 1}
    assert list(_taken_back(kept, {"a": "no", "b": "nor this"})) == [
        "model a cannot start and goes on as it was: no",
        "model b cannot start and was left out: nor this",
        "everything else is as the file says",
    ]


def test_rubbish_between_the_hosts_lines_is_passed_over():
    lines = io.StringIO('chatter\n[1]\n{"event": "stopped"}\n"text"\n{}\n')
    assert list(host._events(lines)) == [json.loads('{"event": "stopped"}')]


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 1), (2, 2), (-9, 1)])
def test_the_hosts_end_becomes_an_exit_code(code, expected, capsys):
    assert host._exit_code(code) == expected
    assert ("SIGKILL" in capsys.readouterr().err) == (code == -9)
