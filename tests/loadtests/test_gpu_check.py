"""The check for machines with a GPU: steps in order, within their time, once each, and loudly."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from loadtests.benches import gpu_check, gpu_server
from loadtests.benches.gpu_check import Journal, Planned, Step, gpus, page, planned, run_steps

REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><skipped message="torch sees no CUDA GPU"/></testcase>
<testcase name="c"><skipped message="torch sees no CUDA GPU"/></testcase>
<testcase name="d"><failure message="no"/></testcase><testcase name="e"><error/></testcase>
</testsuite></testsuites>"""
MACHINE = {"device": "cpu", "gpus": []}


def step(name: str, program: str = "pass", limit_s: float = 60.0, **fields: Any) -> Planned:
    return Planned(name, (sys.executable, "-c", program), limit_s, **fields)


def run(steps: list[Planned], folder: Path, seconds: float = 100.0, **options: Any) -> list[Step]:
    return list(run_steps(steps, Journal(folder, MACHINE), seconds, **options))


# ---- running ------------------------------------------------------------------------------------


def test_a_failure_is_recorded_and_the_rest_still_run_in_their_order(tmp_path):
    steps = [step("a", "print('fine')"), step("b", "raise SystemExit('broken')"), step("c")]
    taken = run(steps, tmp_path)
    assert [(each.name, each.outcome) for each in taken] == [
        ("a", "passed"),
        ("b", "failed"),
        ("c", "passed"),
    ]
    assert "broken" in taken[1].said
    log = (tmp_path / "log.txt").read_text()
    assert log.index("==== a") < log.index("fine") < log.index("==== b") < log.index("broken")


def test_a_second_call_goes_on_where_the_first_ended(tmp_path):
    marks = tmp_path / "marks"
    marking = f"open({str(marks)!r}, 'a').write('x')"
    first = [step("a", marking), step("b", marking + "; raise SystemExit(1)")]
    run(first, tmp_path / "out")
    taken = run([*first, step("c", marking)], tmp_path / "out")
    assert [each.outcome for each in taken] == ["passed", "failed", "passed"]
    assert marks.read_text() == "xxx"


def test_what_did_not_pass_is_run_again_when_asked(tmp_path):
    flag = tmp_path / "flag"
    steps = [step("a"), step("b", f"import os, sys; sys.exit(not os.path.exists({str(flag)!r}))")]
    assert [each.outcome for each in run(steps, tmp_path / "out")] == ["passed", "failed"]
    flag.touch()
    assert [each.outcome for each in run(steps, tmp_path / "out")] == ["passed", "failed"]
    taken = run(steps, tmp_path / "out", again=("failed",))
    assert [each.outcome for each in taken] == ["passed", "passed"]
    assert [each.outcome for each in run(steps, tmp_path / "out")] == ["passed", "passed"]


def test_a_step_beyond_its_limit_is_ended_with_what_it_started_and_fails(tmp_path):
    alive, beat = tmp_path / "alive", tmp_path / "beat.py"
    beat.write_text(f"import time\nwhile True:\n open({str(alive)!r}, 'w'); time.sleep(.02)")
    program = (
        "import subprocess, sys, time; print('begun', flush=True);"
        f"subprocess.Popen([sys.executable, {str(beat)!r}]); time.sleep(100)"
    )
    taken = run([step("slow", program, 1.0), step("next")], tmp_path / "out")
    assert [each.outcome for each in taken] == ["failed", "passed"]
    assert "begun" in taken[0].said
    assert "it took longer than 1 s" in taken[0].said
    alive.unlink(missing_ok=True)
    time.sleep(0.2)
    assert not alive.exists()


def test_a_call_whose_time_is_up_leaves_steps_to_the_next(tmp_path):
    steps = [step("long", "import time; time.sleep(30)"), step("after", limit_s=12.0)]
    taken = run(steps, tmp_path, seconds=14.0)
    assert [each.outcome for each in taken] == ["left", "passed"]
    cut = run([step("long", "import time; time.sleep(3)", 2.5)], tmp_path / "cut", seconds=2.0)
    assert [each.outcome for each in cut] == ["left"]
    assert run([step("long")], tmp_path / "cut")[0].outcome == "passed"


def test_a_line_that_was_being_written_is_run_again(tmp_path):
    run([step("a")], tmp_path)
    file = tmp_path / "steps.jsonl"
    file.write_text(file.read_text() + '{"name": "b", "outc')
    assert [each.name for each in run([step("a"), step("b")], tmp_path)] == ["a", "b"]


def test_steps_of_another_machine_are_not_taken_for_ours(tmp_path):
    run([step("a")], tmp_path)
    with pytest.raises(ValueError, match="steps of another machine"):
        Journal(tmp_path, {"device": "cuda", "gpus": [{"name": "NVIDIA H100"}]})


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("pass", "passed"),
        ("raise SystemExit('broken')", "failed"),
        ("print('Error: No such command'); raise SystemExit(2)", "missing"),
        ("print('the tensorrt runtime needs its package: …'); raise SystemExit(1)", "missing"),
        ("print('but onnxruntime sees no CUDA GPU: …'); raise SystemExit(1)", "missing"),
    ],
)
def test_commands_pass_fail_or_are_missing(tmp_path, program, outcome):
    (taken,) = run([step("verify: torch", program)], tmp_path)
    assert taken.outcome == outcome
    assert ("broken" in taken.said) == (outcome == "failed")


def test_a_program_that_is_not_there_fails_alone(tmp_path):
    taken = run([Planned("a", ("no-such-program-at-all",), 9.0), step("b")], tmp_path)
    assert [each.outcome for each in taken] == ["failed", "passed"]


# ---- suites -------------------------------------------------------------------------------------


def suite(folder: Path, report: str, code: int = 0) -> Step:
    file = folder / "report.xml"
    program = f"open({str(file)!r}, 'w').write({report!r}); raise SystemExit({code})"
    (taken,) = run([step("conformance", program if report else "import x", report=file)], folder)
    return taken


def test_tests_are_counted_and_skips_keep_their_reason(tmp_path):
    taken = suite(tmp_path, REPORT, 1)
    assert taken.counts == {"passed": 1, "skipped": 2, "failed": 2}
    assert taken.outcome == "failed"
    assert taken.said == "2 × torch sees no CUDA GPU"


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("torch sees no CUDA GPU (unverified here: docs/runtimes.md)", "incomplete"),
        ("the model has no mask", "passed"),
    ],
)
def test_suite_that_skipped_what_needs_the_gpu_did_not_pass(tmp_path, reason, outcome):
    report = (
        f'<testsuite><testcase name="a"/><testcase name="b"><skipped message="{reason}"/>'
        "</testcase></testsuite>"
    )
    assert suite(tmp_path, report).outcome == outcome


def test_suite_that_left_no_report_failed_with_its_own_words(tmp_path):
    taken = suite(tmp_path, "")
    assert taken.outcome == "failed"
    assert "ModuleNotFoundError" in taken.said


# ---- which steps --------------------------------------------------------------------------------


def test_whole_servers_come_first_then_conformance_then_accuracy_then_speed():
    names = [each.name for each in planned("cuda", gpu_check.GPU_MODES)]
    kinds = list(dict.fromkeys(name.split(":")[0] for name in names))
    assert kinds[:1] == ["server"]
    assert [kind for kind in kinds if kind in ("conformance", "verify", "profile")] == [
        "conformance",
        "verify",
        "profile",
    ]
    assert len(set(names)) == len(names)
    assert all(each.limit_s <= 300 for each in planned("cuda", gpu_check.GPU_MODES))


def test_processors_run_no_step_that_needs_a_gpu():
    steps = planned("cpu", gpu_check.CPU_MODES)
    words = [word for each in steps for word in each.command]
    assert "nvidia-smi" not in words
    assert "cuda" not in words
    assert not any("tensorrt" in each.name for each in steps)
    assert [each.name for each in steps][:4] == [
        "server: torch",
        "server: generate",
        "server: onnxruntime",
        "server: chat",
    ]


def test_every_way_makes_a_settings_file_and_eight_bits_get_rows(tmp_path: Path):
    gpu_check.write_settings(gpu_check.GPU_MODES, tmp_path)
    for name, way in gpu_check.GPU_MODES.items():
        model = yaml.safe_load((tmp_path / f"{gpu_check.slug(name)}.yaml").read_text())["models"]
        assert model["minilm"]["runtime"] == way["runtime"]
        assert model["minilm"]["options"] == way["options"]
    with np.load(tmp_path / "calibration" / "samples.npz") as rows:
        assert rows["input_ids.shapes"].sum() == rows["input_ids"].size
        assert rows["input_ids.shapes"].max() == 512


def test_way_of_another_precision_than_the_reference_has_bounds_of_its_own():
    """The bounds of `verify` where none are set are those of fp32."""
    for way in gpu_check.GPU_MODES.values():
        assert (way.get("precision", "fp32") == "fp32") == ("accept" not in way)


@pytest.mark.parametrize("way", gpu_server.WAYS)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_servers_settings_ask_for_the_device(way, device):
    (model,) = gpu_server.settings(way, device)["models"].values()
    assert (model.get("replicas", {}).get("num_gpus", 0) == 1) == (device == "cuda")
    if way != "chat":
        assert model["options"]["device"] == device


# ---- the record ---------------------------------------------------------------------------------


def test_every_gpu_is_told_with_driver_and_memory():
    text = "NVIDIA H100, 550.54, 81559 MiB, 9.0, Disabled\nNVIDIA A10, 550.54, 1 MiB, 8.6, [N/A]\n"
    first, second = gpus(text)
    assert (first["name"], first["driver_version"], first["compute_cap"]) == (
        "NVIDIA H100",
        "550.54",
        "9.0",
    )
    assert second["mig.mode.current"] == "[N/A]"


def test_page_names_machine_versions_and_every_step():
    record = {
        "date": "2026-11-21",
        "machine": "some CPU",
        "gpus": [{"name": "NVIDIA H100", "driver_version": "550.54"}],
        "versions": {"torch": "2.13"},
        "steps": [asdict(Step("s", "failed", 1.25, {"passed": 2}, "a|b\nc"))],
    }
    written = page(record)
    assert "NVIDIA H100, 550.54" in written
    assert "torch 2.13" in written
    assert "| s | failed | 1.2 | 2 passed | a\\|b c |" in written


@pytest.fixture
def small(monkeypatch, tmp_path):
    """The command with small steps, on a machine without a GPU."""

    def check(*steps: Planned, arguments: tuple[str, ...] = ("--device", "cpu")) -> int:
        monkeypatch.setattr(gpu_check, "planned", lambda device, modes: list(steps))
        return gpu_check.main(["--out", str(tmp_path / "out"), *arguments])

    monkeypatch.setattr(gpu_check, "seen_gpus", list)
    monkeypatch.setattr(gpu_check, "WORK", tmp_path / "work")
    monkeypatch.setattr(gpu_check, "CALIBRATED", str(tmp_path / "work" / "calibration"))
    monkeypatch.setattr(gpu_check, "write_settings", lambda modes: None)
    return check


def test_machine_without_a_gpu_is_told_what_would_run_and_nothing_does(small, tmp_path, capsys):
    assert small(step("server: torch"), arguments=()) == 2
    said = capsys.readouterr()
    assert "no NVIDIA GPU here" in said.err
    assert "60 s at most  server: torch" in said.out
    assert not (tmp_path / "out").exists()


def test_list_shows_the_steps_and_runs_none(small, tmp_path, capsys):
    assert small(step("server: torch"), arguments=("--list",)) == 0
    assert "server: torch" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_record_is_written_and_a_failure_shows_in_the_exit_code(small, tmp_path):
    assert small(step("a"), step("b", "raise SystemExit(1)")) == 1
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    assert [each["outcome"] for each in record["steps"]] == ["passed", "failed"]
    assert record["versions"]["numpy"]
    assert (tmp_path / "out" / "record.md").read_text() == page(record)


def test_all_that_passed_is_success(small):
    assert small(step("a"), step("b")) == 0


@pytest.mark.parametrize(
    ("program", "seconds"),
    [("print('runtime needs its package'); raise SystemExit(1)", "60"), ("pass", "0")],
)
def test_what_is_missing_or_left_shows_in_the_exit_code(small, program, seconds):
    arguments = ("--device", "cpu", "--seconds", seconds)
    assert small(step("a", program), arguments=arguments) == 1


def test_unknown_way_is_refused_by_name(capsys):
    with pytest.raises(SystemExit):
        gpu_check.main(["--ways", "torch warp"])
    assert "torch warp" in capsys.readouterr().err
