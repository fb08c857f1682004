"""Waiting for a rollout and for optional models, and what is printed of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deployments.control.application_list import AppDifference
from deployments.control.origin import Origin
from deployments.control.plan import Deployment
from deployments.settings.tree import Settings
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
def told(monkeypatch, tmp_path):
    """What the server says of its rollouts, look by look; the last one again and again."""
    answers: list[list[dict[str, Any]]] = []
    going_on = Deployment(("model-m",), [], {}, {"m": 1}, {}, {})
    cluster = SimpleNamespace(
        waiting_for_restart=lambda settings: [], deploy=lambda settings, settles: going_on,
        watch=lambda *_: {}, rollouts=lambda *_: seen(answers),
    )  # fmt: skip
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(Where, "cluster", lambda where: cluster)
    monkeypatch.setattr(Where, "ask", lambda where, *_: {"origin": Origin(tmp_path).plain()})
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
    assert said.out == "m: its rollout goes on\n"
    assert ("aborted" in said.err) == waits


def started(*names: str) -> tuple[Settings, Deployment]:
    models = {name: {"runtime": "synthetic", "optional": name != "m"} for name in ("m", *names)}
    found = [AppDifference(f"model-{name}", "added") for name in models]
    return Settings.model_validate({"models": models}), Deployment((), found, {}, {}, {}, {})


class Settled:
    """A cluster on which all that was deployed is settled; some of it failed."""

    def __init__(self, **failed: str) -> None:
        self._failed = {f"model-{name}": why for name, why in failed.items()}

    def watch(self, *_):
        return dict(self._failed)


def test_apply_says_why_an_optional_model_cannot_start(capsys, monkeypatch):
    found = {"c": ("starting", "staging 10%"), "gone": ("starting", "")}
    asked = []

    def ask(where, request):
        asked.append(dict(found))
        if len(asked) == 2:
            found.update(c=("failed", "no file m.onnx"), late=("ready", ""))
            del found["gone"]
        return {"models": [{"name": n, "state": s, "reason": why} for n, (s, why) in found.items()]}

    monkeypatch.setattr(watching, "_OPTIONAL_LOOKS_S", 0.0)
    monkeypatch.setattr(Where, "ask", ask)
    served = Settled(f="no file f.onnx")
    assert watching.wait_for_all(served, *started("c", "f", "gone", "late"), Where(1)) == 0
    assert capsys.readouterr().out == (
        "f is optional and cannot start: no file f.onnx\n"
        "c is optional and cannot start: no file m.onnx\n"
    )
    assert len(asked) == 2
    monkeypatch.setattr(watching, "_OPTIONAL_S", 0.0)
    assert watching.wait_for_all(Settled(), *started("e"), Where(1)) == 0
    assert "e is optional and still starting" in capsys.readouterr().out


def test_a_required_model_that_cannot_start_fails_apply(capsys):
    assert watching.wait_for_all(Settled(m="no file"), *started(), Where(1)) == 1
    assert "model m cannot start and was left out: no file\n" in capsys.readouterr().err
