"""Are the right ways of running a model compared, and is the fastest named?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from deployments import cli
from deployments.settings.model import ModelSettings
from deployments.tools.profile import compare, measure
from deployments.tools.profile.compare import Timed, candidates, verdict
from deployments.tools.profile.lengths import WrongArguments
from deployments.tools.profile.measure import CannotProfile, in_a_process
from runtimes import catalog


def model(**fields: Any) -> ModelSettings:
    return ModelSettings.model_validate({"runtime": "openvino", "source": "m.onnx", **fields})


def named(names: list[str], **fields: Any) -> list[str]:
    return [str(each) for each in candidates(names, model(**fields), {})]


@pytest.fixture(autouse=True)
def everything_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "available", lambda *_: None)


def test_each_precision_and_mode_that_the_backend_has_runs_once() -> None:
    assert named(["openvino", "openvino"]) == ["openvino fp32", "openvino bf16"]
    assert named(["onnxruntime"]) == ["onnxruntime fp32"]
    assert "openvino fp16" in named(["openvino"], precision="fp16")
    assert {"torch eager fp32", "torch compile bf16"} <= set(named(["torch"]))


def test_options_that_the_other_backend_knows_hold_there_too() -> None:
    options = {"pad_multiple": 8, "shape_cache": 100}
    ov, ort = (next(candidates([name], model(options=options), {})) for name in
               ("openvino", "onnxruntime"))  # fmt: skip
    assert dict(ov.options) == options
    assert dict(ort.options) == {"pad_multiple": 8}


def test_a_precision_may_be_named() -> None:
    assert named(["openvino:bf16"]) == ["openvino bf16"]
    with pytest.raises(WrongArguments, match="onnxruntime has no precision 'bf16', but fp32"):
        named(["onnxruntime:bf16"])


@pytest.mark.parametrize("name", ["onnx", "", "synthetic"])
def test_a_backend_that_there_is_not_is_refused(name: str) -> None:
    with pytest.raises(WrongArguments, match=r"must be some of .*openvino"):
        named([name])


def test_the_verdict_names_ties_and_by_how_much_the_next_is_slower() -> None:
    best = Timed("a", (200.0, 210.0), 0.1)
    found = [best, Timed("b", (190.0, 201.0), 0.1), Timed("c", (100.0, 105.0), 0.2)]
    first, ties, slower = verdict(found)
    assert first.endswith(": a.")
    assert ties == "Passes overlap with its own: b."
    assert slower == "2.00 times as fast as c."
    assert list(verdict([best])) == ["Fastest for this model at these lengths: a."]


def test_what_ran_is_ranked_and_what_did_not_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes are played: openvino fails, torch compile hangs."""

    def play(module: str, job: Mapping[str, Any], seconds: float) -> Any:
        told = job["model"]
        if told["options"].get("mode") == "compile":
            raise CannotProfile("not done")
        if told["runtime"] == "openvino":
            raise CannotProfile("bad")
        return {"rates": [100.0, 110.0], "batch_s": 0.01}

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compare, "in_a_process", play)
    path = tmp_path / "own.yaml"
    path.write_text("models: {device: {runtime: synthetic, lengths: {max: 64}}}\n")
    words = ["profile", str(path), "--compare", "openvino:fp32, torch:fp32"]
    done = CliRunner().invoke(cli.main, words)
    assert done.exit_code == 0, done.output
    assert "Fastest for this model at these lengths: torch eager fp32." in done.stdout
    assert "Skipped: openvino fp32: bad" in done.stdout
    assert "Skipped: torch compile fp32: not done" in done.stdout
    made = json.loads(CliRunner().invoke(cli.main, [*words, "--json"]).stdout)
    assert made["ranking"][0]["tokens_per_s"] == 105.0


def script(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    (folder / "played.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return "played"


def test_a_process_that_fails_is_told_by_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = script(tmp_path, monkeypatch, "raise ValueError('bad')")
    with pytest.raises(CannotProfile, match=r"^ValueError: bad$"):
        in_a_process(played, {}, 1.0)


def test_an_answer_is_found_among_what_libraries_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "print('a library')\nprint(input())\nprint('(Engine pid=7) ends')\nprint(7)"
    played = script(tmp_path, monkeypatch, text)
    assert in_a_process(played, {"a": 1}, 1.0) == {"a": 1}
    script(tmp_path, monkeypatch, "print('a library')")
    with pytest.raises(CannotProfile, match="printed no answer"):
        in_a_process(played, {}, 1.0)


@pytest.mark.parametrize("then", ["time.sleep(60)", "os.kill(os.getpid(), 9)"])
def test_what_hangs_ends_with_the_processes_that_it_has_started(
    then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine's process has its outputs, too, so whoever reads these would wait for it, also
    where the process that began it is dead."""
    text = f"""
import os, pathlib, subprocess, time
engine = subprocess.Popen(["sleep", "60"])
pathlib.Path(__file__).with_name("engine").write_text(str(engine.pid))
{then}
"""
    played = script(tmp_path, monkeypatch, text)
    monkeypatch.setattr(measure, "LOAD_S", 2.0)
    began = monotonic()
    with pytest.raises(CannotProfile, match="not done after 2 s to load and 1 s more"):
        in_a_process(played, {}, 1.0)
    assert monotonic() - began < 30.0
    engine = int((tmp_path / "engine").read_text())
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(engine)
        while process.status() != psutil.STATUS_ZOMBIE:  # killed, and not gone yet
            assert monotonic() - began < 30.0
            sleep(0.01)
