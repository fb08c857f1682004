"""A starting replica's verdict: made once, found again, made anew when anything changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.replica.verify import gate, verification
from deployments.replica.verify.verification import NotAccepted
from deployments.settings.model import ModelSettings
from deployments.settings.reference import CannotVerify
from runtimes import catalog
from runtimes.types import Runtime, RuntimeSettings

pytest.importorskip("openvino")
pytest.importorskip("onnxruntime")


class Start:
    """A replica's start: `told` are the phases it went through."""

    def __init__(self, source: Path, cache: Path, accept: dict[str, Any]) -> None:
        self.told: list[tuple[str, float]] = []
        self.model = ModelSettings.model_validate(
            {"runtime": "openvino", "source": str(source), "accept": accept}
        )
        self.settings = RuntimeSettings(
            "m",
            "openvino",
            source,
            cache,
            threads=1,
            max_length=64,
            edges=(8, 64),
            progress=lambda *progress: self.told.append(progress),
        )

    def admit(self, **settings: Any) -> None:
        chosen = replace(self.settings, **settings)
        runtime: Runtime = catalog.create(chosen)
        runtime.load()
        self.told.clear()
        gate.admit(self.model, chosen, runtime)


@pytest.fixture
def start(tmp_path, tokens_onnx):
    def make(accept: dict[str, Any], *, half: bool = False) -> Start:
        source = tokens_onnx("m.onnx", half=half, scale=3)
        return Start(source, tmp_path / "cache", accept)

    return make


@pytest.fixture
def comparisons(monkeypatch) -> list[str]:
    """Names of the models that were really compared."""
    made: list[str] = []

    def counted(settings, *rest):
        made.append(settings.name)
        return verification.verify(settings, *rest)

    monkeypatch.setattr(gate, "verify", counted)
    return made


def test_a_model_that_asks_for_nothing_is_compared_with_nothing(start, comparisons):
    starting = start({})
    starting.admit()
    assert starting.told == []
    assert comparisons == []


@pytest.mark.parametrize("accept", [{}, {"max_abs": 1e-3}])
def test_a_model_that_answers_nan_is_refused_unless_it_may(tmp_path, tokens_onnx, accept):
    source = tokens_onnx("nan.onnx", scale=float("nan"))
    starting = Start(source, tmp_path / "cache", accept)
    with pytest.raises(NotAccepted, match="right, say allow_non_finite: true"):
        starting.admit()
    starting.model = starting.model.model_copy(update={"allow_non_finite": True})
    starting.admit()


def test_a_model_that_agrees_is_admitted_with_progress(start):
    starting = start({"max_abs": 1e-3})
    starting.admit()
    phases, shares = zip(*starting.told, strict=True)
    assert set(phases) == {"verifying"}
    assert list(shares) == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert len(shares) > 3


def test_a_model_that_does_not_agree_is_refused_with_the_sentence(start, tokens_onnx):
    starting = start({"max_abs": 1e-6, "artifact": str(tokens_onnx("whole.onnx"))}, half=True)
    with pytest.raises(NotAccepted) as refused:
        starting.admit()
    said = str(refused.value)
    assert said.startswith("not accepted against onnxruntime fp32: output y, rows of 1-8 tokens: ")
    assert "allowed at most 1e-06" in said
    assert "(and 1 more); `headrace verify FILE m` shows all" in said


@pytest.mark.parametrize("half", [False, True])
def test_a_verdict_is_found_again_whichever_it_was(start, comparisons, tokens_onnx, half):
    accept = {"max_abs": 1e-3, "artifact": str(tokens_onnx("whole.onnx"))}
    for _ in range(2):
        starting = start(accept, half=half)
        try:
            starting.admit()
            assert not half
        except NotAccepted:
            assert half
    assert comparisons == ["m"]


def test_whatever_a_verdict_depends_on_makes_it_anew(start, comparisons, tokens_onnx, monkeypatch):
    start({"max_abs": 1}).admit()
    start({"max_abs": 2}).admit()
    start({"max_abs": 2, "samples": 201}).admit()
    start({"max_abs": 2, "samples": 201}).admit(edges=(16, 64))
    start({"max_abs": 2, "samples": 201}).admit(options={"streams": 2})
    starting = start({"max_abs": 2, "artifact": str(tokens_onnx("whole.onnx"))})
    starting.admit()
    tokens_onnx("whole.onnx", scale=2)
    starting.admit()
    assert len(comparisons) == 7
    monkeypatch.setattr(catalog, "version", lambda runtime: "another")
    starting.admit()
    assert len(comparisons) == 8


def test_the_samples_file_s_content_is_part_of_it(start, comparisons, tmp_path):
    file = tmp_path / "s.jsonl"
    for ids in ("[1]", "[2]", "[2]"):
        file.write_text(f'{{"ids": {ids}}}\n' * 200)
        start({"samples_file": str(file)}).admit()
    assert len(comparisons) == 2


def test_nothing_to_compare_with_is_a_refusal_that_is_not_kept(start, comparisons):
    with pytest.raises(CannotVerify, match="is what is to be verified"):
        start({"against": "openvino"}).admit()
    assert comparisons == []
