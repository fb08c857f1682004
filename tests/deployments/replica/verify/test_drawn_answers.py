"""A model that answers everything with NaN does not start; one that never differs is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_runtimes import FakeRuntime

from deployments.replica.verify.gate import judge_drawn_answers
from deployments.replica.verify.verification import NotAccepted
from runtimes.errors import RunError
from runtimes.types import Batch, Limits, Ragged, Result, RuntimeSettings, StageTimes, TensorSpec


class Answering(FakeRuntime):
    """Each row's answer is what `answer` says of its length."""

    LIMITS = Limits(
        inputs=(TensorSpec("ids", "INT64", (-1, -1)),),
        outputs=(TensorSpec("y", "FP32", (-1,)),),
        length_input="ids",
        max_length=64,
    )

    def __init__(self, answer: Callable[[int], float]) -> None:
        super().__init__()
        self.answer = answer

    def run(self, batch: Batch) -> Result:
        self.batches.append(batch)
        answers = np.array([self.answer(n) for n in batch.lengths.tolist()], dtype=np.float32)
        return Result({"y": Ragged("FP32", answers, ((),) * batch.rows)}, StageTimes(), 0)


@pytest.fixture
def settings(tmp_path: Path) -> RuntimeSettings:
    return RuntimeSettings(
        "m", "onnxruntime", None, tmp_path, edges=(8, 32, 64), max_size=8, max_tokens=1024
    )


def test_a_model_that_never_answers_finitely_is_refused(settings: RuntimeSettings) -> None:
    runtime = Answering(lambda length: np.nan)
    with pytest.raises(NotAccepted, match="allow_non_finite: true"):
        judge_drawn_answers(settings, runtime)
    assert {n for batch in runtime.batches for n in batch.lengths.tolist()} >= {1, 8, 33, 64}


@pytest.mark.parametrize("finite", [8, 33])
def test_one_finite_answer_is_enough(settings: RuntimeSettings, finite: int) -> None:
    judge_drawn_answers(settings, Answering(lambda length: 1.0 if length == finite else np.inf))


def test_a_model_that_fails_on_drawn_rows_is_not_judged(settings: RuntimeSettings) -> None:
    def fails(length: int) -> float:
        raise RunError("no such input")

    judge_drawn_answers(settings, Answering(fails))


def test_a_healthy_model_is_asked_once(settings: RuntimeSettings) -> None:
    runtime = Answering(float)
    judge_drawn_answers(settings, runtime)
    assert len(runtime.batches) == 1


@pytest.mark.parametrize("answer", [1.0, 0.0])
def test_a_model_that_always_answers_alike_is_told(
    settings: RuntimeSettings, caplog: pytest.LogCaptureFixture, answer: float
) -> None:
    judge_drawn_answers(settings, Answering(lambda length: answer))
    assert "4 different drawn inputs have the same answer (output y)" in caplog.text


def test_a_model_whose_answers_differ_is_not(
    settings: RuntimeSettings, caplog: pytest.LogCaptureFixture
) -> None:
    judge_drawn_answers(settings, Answering(float))
    assert caplog.text == ""
