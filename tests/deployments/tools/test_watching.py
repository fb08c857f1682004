"""Waiting for a rollout and for optional models, and what is printed of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deployments.tools import change, watching
from deployments.tools.watching import wait_for
from deployments.tools.where import Where


def record(phase: str, **fields: Any) -> dict[str, Any]:
    version = {"version": "v", "answered": 30, "failed": 0, "median_ms": 4.2}
    return {
        "model": "m", "number": 5, "phase": phase, "share": 0.2, "step": 1, "steps": 2,
        "held_s": 0.5, "hold_s": 1.0, "why": "", "live": version, "canary": version,
        "copies": version | {"answered": 0}, "compared": 0, "agreed": 0, "id": 1,
        "over": phase in ("promoted", "aborted"), **fields,
    }  # fmt: skip


@pytest.fixture
def told(monkeypatch):
    """What the host answers, look by look; the last one again and again."""
    answers: list[list[dict[str, Any]]] = []
    changes = {"restarted": [], "rollouts that go on": ["m"], "rollouts": {"m": 1}}

    def ask(where, request, *_):
        return changes if request["do"] == "apply" else {"rollouts": seen(answers)}

    monkeypatch.setattr(Where, "ask", ask)
    monkeypatch.setattr(Where, "server", lambda where: SimpleNamespace(port=8000))
    return answers


def seen(answers: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return answers.pop(0) if len(answers) > 1 else answers[0]


def wait(told, pause=lambda seconds: None) -> int:
    return wait_for({"m": 1}, lambda: seen(told), pause)


def test_a_promoted_rollout_is_fine_and_each_step_is_said_once(told, capsys):
    second = record("step", step=2)
    told += [[record("checking")], [record("step")], [record("step")], [second],
             [record("promoting", step=2)], [record("promoted", step=2)]]  # fmt: skip
    assert wait(told) == 0
    said = capsys.readouterr()
    assert said.err.count("\n") == 5
    assert "m: promoted" in said.out
    assert "file" not in said.out + said.err


def test_an_aborted_one_says_why(told, capsys):
    told += [[record("step")], [record("aborted", why="5 of 9 requests failed")]]
    assert wait(told) == 1
    said = capsys.readouterr().err
    assert "aborted, the live version goes on: 5 of 9 requests failed" in said
    assert "where the file still has the new version" in said
    assert "`headrace diff FILE`" in said


def test_another_version_in_its_place_ends_the_waiting(told, capsys):
    told += [[record("step")], [record("checking", id=2)]]
    assert wait(told) == 1
    assert "replaced by another rollout meanwhile: m" in capsys.readouterr().err


def test_ctrl_c_ends_only_the_waiting(told, capsys):
    told += [[record("step")]]

    def pressed(_):
        raise KeyboardInterrupt

    assert wait(told, pressed) == 130
    assert "the rollout of m goes on" in capsys.readouterr().err


@pytest.mark.parametrize("waits", [True, False])
def test_a_file_that_is_applied_again_waits_for_the_rollout_that_goes_on(
    told, tmp_path, capsys, waits
):
    file = tmp_path / "new.yaml"
    file.write_text("models: {m: {runtime: synthetic}}")
    told += [[record("aborted", why="it fails")]]
    assert change.apply(file, Where(), wait=waits) == (1 if waits else 0)
    said = capsys.readouterr()
    assert said.out == "rollouts that go on: m\n"
    assert ("aborted" in said.err) == waits


def test_apply_says_why_an_optional_model_cannot_start(capsys, monkeypatch):
    found = {"c": ("starting", "staging 10%"), "d": ("starting", "")}
    asked = []

    def ask(where, request):
        asked.append(dict(found))
        if len(asked) == 2:
            found["c"] = ("failed", "no file m.onnx")
            found["d"] = ("ready", "")
        return {"models": [{"name": n, "state": s, "reason": why} for n, (s, why) in found.items()]}

    monkeypatch.setattr(watching, "_OPTIONAL_LOOKS_S", 0.0)
    monkeypatch.setattr(Where, "ask", ask)
    assert watching.wait_here({}, ["c", "d", "gone"], Where(1)) == 0
    assert capsys.readouterr().out == "c is optional and cannot start: no file m.onnx\n"
    assert len(asked) == 2
    monkeypatch.setattr(watching, "_OPTIONAL_S", 0.0)
    assert watching.wait_here({}, ["e"], Where(1)) == 0
    assert "e is optional and still starting" in capsys.readouterr().out
