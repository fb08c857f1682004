"""The check for machines with a GPU: what it reads, what it says, and that it fails loudly."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from loadtests.benches import gpu_check
from loadtests.benches.gpu_check import Step, command_step, gpus, page, suite_step

REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><skipped message="torch sees no CUDA GPU"/></testcase>
<testcase name="c"><skipped message="torch sees no CUDA GPU"/></testcase>
<testcase name="d"><failure message="no"/></testcase><testcase name="e"><error/></testcase>
</testsuite></testsuites>"""


def test_every_gpu_is_told_with_driver_and_memory():
    text = "NVIDIA H100, 550.54, 81559 MiB, 9.0, Disabled\nNVIDIA A10, 550.54, 1 MiB, 8.6, [N/A]\n"
    first, second = gpus(text)
    assert (first["name"], first["driver_version"], first["compute_cap"]) == (
        "NVIDIA H100",
        "550.54",
        "9.0",
    )
    assert second["mig.mode.current"] == "[N/A]"


def test_tests_are_counted_and_skips_keep_their_reason(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    step = suite_step(report, 2.0, 1, "")
    assert step.counts == {"passed": 1, "skipped": 2, "failed": 2}
    assert step.outcome == "failed"
    assert step.said == "2 × torch sees no CUDA GPU"


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("torch sees no CUDA GPU (unverified here: docs/runtimes.md)", "incomplete"),
        ("the model has no mask", "passed"),
    ],
)
def test_suite_that_skipped_what_needs_the_gpu_did_not_pass(tmp_path, reason, outcome):
    report = tmp_path / "report.xml"
    report.write_text(
        f'<testsuite><testcase name="a"/><testcase name="b"><skipped message="{reason}"/>'
        "</testcase></testsuite>"
    )
    assert suite_step(report, 2.0, 0, "").outcome == outcome


def test_suite_that_left_no_report_failed_with_its_own_words(tmp_path):
    step = suite_step(tmp_path / "absent.xml", 1.0, 4, "ModuleNotFoundError: pytest")
    assert (step.outcome, step.said) == ("failed", "ModuleNotFoundError: pytest")


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
def test_commands_pass_fail_or_are_missing(program, outcome):
    step = command_step("verify: torch", [sys.executable, "-c", program, "verify"])
    assert step.outcome == outcome
    assert ("broken" in step.said) == (outcome == "failed")


def test_machine_without_a_gpu_is_told_and_nothing_is_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "seen_gpus", list)
    assert gpu_check.main(["--out", str(tmp_path / "out")]) == 2
    assert "no NVIDIA GPU here" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_record_is_written_and_a_failure_shows_in_the_exit_code(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check, "seen_gpus", list)
    taken = [Step("conformance", "passed", 1.0), Step("verify: torch eager", "failed", 1.0)]
    monkeypatch.setattr(gpu_check, "steps", lambda out, ways: taken)
    assert gpu_check.main(["--out", str(tmp_path), "--without-gpu"]) == 1
    record = json.loads((tmp_path / "record.json").read_text())
    assert [step["outcome"] for step in record["steps"]] == ["passed", "failed"]
    assert record["versions"]["numpy"]
    assert (tmp_path / "record.md").read_text() == page(record)


def test_unknown_way_is_refused_by_name(capsys):
    with pytest.raises(SystemExit):
        gpu_check.main(["--ways", "torch warp"])
    assert "torch warp" in capsys.readouterr().err


def test_every_way_makes_a_settings_file(tmp_path: Path):
    for name, way in gpu_check.GPU_MODES.items():
        model = yaml.safe_load(gpu_check.settings_file(tmp_path, name, way).read_text())["models"]
        assert model["minilm"]["runtime"] == way["runtime"]
        assert model["minilm"]["options"] == way["options"]
