"""Candidates in processes of their own: a tiny ONNX model profiled and compared for real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from deployments import cli
from deployments.tools.profile.compare.candidates import Candidate, candidates
from deployments.tools.profile.compare.contest import (
    ROUNDS,
    CandidateFailed,
    CandidateProcess,
    Contest,
    Ran,
)
from deployments.tools.profile.lengths import RowLengths
from deployments.tools.profile.subject import ChosenModel, ProfileOptions, chosen


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.main, ["profile", *words])


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A settings file of one model, `x` FP32 [-1, 8] through one product."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", kind, [None, 8])],
        [helper.make_tensor_value_info("y", kind, [None, 4])],
        [helper.make_tensor("w", kind, [8, 4], [0.5] * 32)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(tmp_path / "m.onnx"))
    path = tmp_path / "s.yaml"
    path.write_text("models: {m: {runtime: onnxruntime, source: m.onnx, batch: {max_size: 8}}}\n")
    return path


@pytest.mark.slow
def test_a_tiny_model_is_profiled(tiny: Path) -> None:
    done = run(str(tiny), "--seconds", "1", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["identity"]["runtime"] == "onnxruntime"
    assert {width for _, width, _ in found["points"]} == {1}
    assert any(note.startswith("Stored for serve: ") for note in found["notes"])


@pytest.mark.slow
def test_a_tiny_model_is_compared(tiny: Path) -> None:
    page = tiny.parent / "page.html"
    words = ("--compare", "onnxruntime", "--seconds", "1", "--json", "--html", str(page))
    done = run(str(tiny), *words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["skipped"] == []
    best = found["ranking"][0]
    assert best["name"].startswith("onnxruntime fp32, ")
    assert (best["ratio"], best["runs"]) == (1.0, ROUNDS - 1)
    assert best["mean_s"] > 0.0
    assert best["p99_s"] > 0.0
    assert "<svg" in page.read_text()


def test_an_unknown_backend_exits_2(tiny: Path) -> None:
    done = run(str(tiny), "--compare", "onnx")
    assert done.exit_code == 2
    assert "--compare: is 'onnx'; must be some of onnxruntime" in done.stderr


def test_a_trace_of_several_backends_is_refused(tiny: Path) -> None:
    done = run(str(tiny), "--compare", "onnxruntime", "--trace", "x.json")
    assert done.exit_code == 2
    assert "--trace is of one backend" in done.stderr


class Fake:
    """A candidate's processes without any: takes no time, and fails as its name says."""

    made: list[Fake]

    def __init__(self, candidate: Candidate, *_: Any) -> None:
        self.candidate = candidate
        self.runs: list[tuple[float, int]] = []
        self.ended = 0
        self.made.append(self)

    def loaded(self, within_s: float) -> float:
        if self.candidate.runtime == "broken":
            raise CandidateFailed("no such file")
        if self.candidate.runtime == "interrupted":
            raise KeyboardInterrupt
        return 2.0

    def run(self, seconds: float, every: int) -> Ran:
        self.runs.append((seconds, every))
        if self.candidate.runtime == "dies" and len(self.runs) == 3:
            raise CandidateFailed("its process ended")
        return Ran((1.0,), (0.1,))

    def end(self) -> None:
        self.ended += 1


def contest(monkeypatch: pytest.MonkeyPatch, *names: str, seconds: float = 100.0) -> Contest:
    monkeypatch.setattr(Fake, "made", [], raising=False)
    monkeypatch.setattr("deployments.tools.profile.compare.contest.CandidateProcess", Fake)
    lengths = RowLengths((5, 6), (5, 6), "here", True)
    found = ChosenModel("m", None, None, lengths, Path())  # type: ignore[arg-type]
    made = Contest(found, 0, lambda what, share: None)
    made.hold([Candidate(name, "fp32", "", (), 1, 1) for name in names], seconds)
    return made


def test_every_candidate_runs_in_every_round_and_the_first_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = contest(monkeypatch, "a", "b")
    assert {name: len(runs) for name, runs in found.runs.items()} == {
        "a fp32, 1 thread": ROUNDS - 1, "b fp32, 1 thread": ROUNDS - 1,
    }  # fmt: skip
    assert [fake.runs for fake in Fake.made] == [[(10.0, 1)] * ROUNDS] * 2
    assert [fake.ended for fake in Fake.made] == [1, 1]


def test_passes_too_long_for_the_time_are_over_fewer_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contest(monkeypatch, "a", "b", seconds=5.0)
    assert Fake.made[0].runs[0] == (0.5, 4)


def test_one_that_cannot_load_is_skipped_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    found = contest(monkeypatch, "a", "broken")
    assert list(found.runs) == ["a fp32, 1 thread"]
    assert [(each.name, each.why) for each in found.skipped] == [
        ("broken fp32, 1 thread", "no such file")
    ]
    assert [fake.ended for fake in Fake.made] == [1, 1]


def test_what_did_not_load_is_not_tried_again_with_other_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = contest(monkeypatch, "broken", "broken", "a")
    assert len(Fake.made) == 2
    assert [each.why for each in found.skipped] == [
        "no such file", "the same with other threads did not load",
    ]  # fmt: skip


def test_one_that_dies_on_the_way_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    found = contest(monkeypatch, "a", "dies")
    assert list(found.runs) == ["a fp32, 1 thread"]
    assert found.skipped[0].why == "its process ended"


def test_an_interruption_ends_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = contest(monkeypatch, "a", "interrupted", "c")
    assert (found.stopped, found.runs) == (True, {})
    assert [fake.ended for fake in Fake.made] == [1, 1]


def test_one_that_takes_too_long_to_load_is_ended(tiny: Path) -> None:
    found = chosen(ProfileOptions(tiny, None, 1.0, None, 0))
    wanted = candidates(["onnxruntime"], found.model, 1)[0][0]
    started = CandidateProcess(wanted, found, [1, 1])
    try:
        with pytest.raises(CandidateFailed, match=r"not loaded after 0\.05 s"):
            started.loaded(0.05)
    finally:
        started.end()
