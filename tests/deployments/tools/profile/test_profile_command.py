"""The whole command: figures of a device whose formula is known, files, errors, interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from deployments import cli
from deployments.replica.describe import runtime_settings
from deployments.replica.known_costs import identity_of, look_up
from deployments.settings_files.load import load
from deployments.tools.profile import measure, sweep
from runtimes.synthetic import runtime as synthetic

SETTINGS = """
models:
  device:
    runtime: synthetic
    lengths: {max: 64}
    batch: {max_size: 8}
    options: {base_ms: 4, per_request_ms: 0.5, per_token_us: 20}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "settings.yaml"
    path.write_text(SETTINGS)
    return path


def run(file: Path, *words: str) -> Result:
    return CliRunner().invoke(cli.main, ["profile", str(file), *words])


def stored(file: Path) -> Any:
    model, cache = load(file).models["device"], file.parent / "cache" / "headrace"
    told = runtime_settings("device", model, cache, lambda *_: None)
    return look_up(identity_of(told), cache).profile


class VirtualTime:
    """Of the device and of whoever times it; nobody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(measure, "perf_counter", self.perf_counter)
        monkeypatch.setattr(synthetic, "time", self)
        monkeypatch.setattr(synthetic, "_wait_until", self.wait_until)

    def perf_counter(self) -> float:
        return self.now

    def wait_until(self, when: float) -> None:
        self.now = max(self.now, when)


def test_a_known_device_is_found_and_stored_for_serving(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    VirtualTime(monkeypatch)
    lengths = file.parent / "lengths"
    lengths.write_text("\n".join(map(str, [4, 9, 20, 30, 60] * 20)))
    done = run(file, "device", "--seconds", "4", "--json", "--lengths", str(lengths))
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    c = found["coefficients"]
    assert (c["launch_s"], c["row_s"], c["token_s"]) == pytest.approx((4e-3, 5e-4, 2e-5), rel=0.05)
    assert found["error"]["held_out"]["p99"] < 0.05
    assert [knee["width"] for knee in found["knees"]] == [16, 32, 48, 64]
    kept = stored(file)
    assert [list(point) for point in kept.points] == found["points"]
    assert list(kept.edges) == found["edges"]
    assert kept.edges[-1] == 64


def test_a_dry_run_prints_the_tables_and_stores_nothing(file: Path) -> None:
    done = run(file, "--seconds", "1", "--dry-run")
    assert done.exit_code == 0, done.output
    for said in ("throughput and latency by batch", "Knee: ", "Where the time of a batch goes",
                 "Cost of a batch: ", "| the call "):  # fmt: skip
        assert said in done.stdout
    assert "Nothing is stored (--dry-run)." in done.stdout
    assert stored(file) is None


def test_an_interruption_prints_what_there_is_and_stores_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, runs = sweep.Sweep._timed, []

    def until_ctrl_c(self: sweep.Sweep, *words: Any) -> Any:
        runs.append(words)
        if len(runs) == 30:
            raise KeyboardInterrupt
        return real(self, *words)

    monkeypatch.setattr(sweep.Sweep, "_timed", until_ctrl_c)
    done = run(file, "--seconds", "60")
    assert done.exit_code == 130
    assert "throughput and latency by batch" in done.stdout
    assert "Stopped before the end: nothing is stored." in done.stdout
    assert stored(file) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gone",), "no model 'gone' there; it has device"),
        (("--lengths", "nowhere.txt"), "nowhere.txt: cannot be read"),
        (("--seconds", "0"), "0.0 is not in the range"),
        (("--seconds", "nan"), "is nan; must be a number of seconds"),
        (("--compare", ""), "--compare: is ''; must be some of"),
    ],
)
def test_what_is_asked_wrongly_exits_2(file: Path, words: tuple[str, ...], said: str) -> None:
    done = run(file, *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_missing_artifact_exits_2(tmp_path: Path) -> None:
    path = tmp_path / "far.yaml"
    path.write_text("models: {a: {runtime: onnxruntime, source: far.onnx}}\n")
    done = run(path)
    assert done.exit_code == 2
    assert "no file or folder" in done.stderr


def test_a_model_that_does_not_load_exits_1_in_its_backends_words(file: Path) -> None:
    bad = file.parent / "bad.onnx"
    bad.write_bytes(b"\x08\x07")
    file.write_text(f"models: {{a: {{runtime: onnxruntime, source: {bad}}}}}\n")
    done = run(file)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "ONNX" in done.stderr
    assert "Traceback" not in done.stderr
