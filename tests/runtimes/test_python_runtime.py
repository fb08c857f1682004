"""What becomes of a Python class that fails: at load, in a batch, in a row, for good.

Answers of classes that do not fail are the conformance suite's.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from deployments.replica.device import run_bisected
from headrace import RowError
from runtimes import catalog, profiling
from runtimes.errors import BadRows, LoadError, RunError, Unhealthy
from runtimes.python import runtime as python_runtime
from runtimes.types import Batch, Ragged, RuntimeSettings


class Own:
    inputs = {"x": "FP32[1]"}
    outputs = {"y": "FP32[1]"}

    def load(self, settings):
        self.settings = settings

    def predict(self, batch):
        return np.asarray(batch["x"]) * 2


def runtime_of(monkeypatch, cls, **settings):
    """Of a class of this module's, as if a file named it."""
    monkeypatch.setattr(python_runtime, "load_class", lambda folder, module, name: cls)
    options = settings.pop("options", {})
    made = RuntimeSettings(
        "own", "python", Path(), cache_dir=Path(), entry=f"{__name__}:{cls.__name__}",
        options=options, **settings,
    )  # fmt: skip
    return catalog.create(made)


@pytest.fixture
def loaded(monkeypatch):
    def make(cls, **settings):
        runtime = runtime_of(monkeypatch, cls, **settings)
        runtime.load()
        return runtime

    return make


def batch(*values):
    return Batch(
        len(values),
        np.ones(len(values), np.int64),
        {"x": Ragged("FP32", np.array(values, np.float32), ((1,),) * len(values))},
    )


def answers(done):
    return done.outputs["y"].data.tolist() if done.outputs else []


def test_load_is_given_the_options_settings(loaded):
    seen = []

    class Seeing(Own):
        def load(self, settings):
            seen.append(settings)

    loaded(Seeing, options={"settings": {"trees": 3}}, threads=2)
    assert (dict(seen[0]), seen[0].threads, seen[0].name) == ({"trees": 3}, 2, "own")
    assert seen[0].path(Path(__file__).name).is_file()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"settings": 3}, "takes a mapping from names to values"),
        ({"padded": "yes"}, "takes true or false"),
        ({"model": "x"}, "unknown option 'model'"),
        ({"warm_s": 0}, "'warm_s' is 0"),
    ],
)
def test_options_are_checked(monkeypatch, options, said):
    with pytest.raises(LoadError, match=said):
        runtime_of(monkeypatch, Own, options=options)


def test_load_that_raises_is_a_load_error_with_its_words(loaded):
    class Broken(Own):
        async def load(self, settings):
            raise OSError("no such file: weights.bin")

    with pytest.raises(LoadError, match=r"Broken\.load raised OSError: no such file: weights\.bin"):
        loaded(Broken)


def test_row_that_says_so_fails_alone(loaded):
    class Picky(Own):
        def predict(self, batch):
            return [
                RowError("not 3", invalid=row[0] == 3) if row[0] >= 3 else row * 2
                for row in batch["x"]
            ]

    done = run_bisected(loaded(Picky), batch(1, 3, 2, 4))
    assert answers(done) == [2.0, 4.0]
    assert [(error.row, error.callers_fault, error.message) for error in done.errors] == [
        (1, True, "not 3"),
        (3, False, "not 3"),
    ]


def test_row_that_is_not_finite_fails_beside_one_that_says_so(loaded):
    class Both(Own):
        def predict(self, batch):
            return [RowError("no") if row[0] == 1 else np.log(row) for row in batch["x"]]

    with np.errstate(divide="ignore"):
        done = run_bisected(loaded(Both), batch(1, 0, np.e))
    assert answers(done) == pytest.approx([1.0])
    assert sorted((error.row, error.not_finite) for error in done.errors) == [
        (0, False),
        (1, True),
    ]


def test_exception_fails_the_rows_that_raise_and_no_others(loaded, caplog):
    class Raising(Own):
        def predict(self, batch):
            if (np.asarray(batch["x"]) == 3).any():
                raise ValueError("secret detail")
            return np.asarray(batch["x"]) * 2

    with caplog.at_level(logging.ERROR):
        done = run_bisected(loaded(Raising), batch(1, 2, 3, 4))
    assert answers(done) == [2.0, 4.0, 8.0]
    (error,) = done.errors
    assert (error.row, error.message) == (2, "Raising.predict raised ValueError")
    assert "secret detail" in caplog.text  # in the log, not in the caller's answer
    assert [each.message for each in caplog.records] == [f"a row failed: {error.message}"]


def test_row_error_that_is_raised_is_the_callers_fault(loaded):
    class Refusing(Own):
        def predict(self, batch):
            raise RowError("bad row")

    with pytest.raises(BadRows, match="bad row"):
        loaded(Refusing).run(batch(1))


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda x: x[:1], "returned 1 rows"),
        (lambda x: x.astype(np.complex64), "complex64"),
        (lambda x: x[:, 0], r"shape \[\]"),
        (lambda x: None, "must be a NumPy array, or a list"),
        (lambda x: {"z": x}, "not declared"),
    ],
)
def test_answer_that_does_not_fit_is_the_models_fault(loaded, returned, said):
    class Wrong(Own):
        def predict(self, batch):
            return returned(np.asarray(batch["x"]))

    with pytest.raises(RunError, match=said):
        loaded(Wrong).run(batch(1, 2))


def test_class_that_exits_or_is_ill_ends_the_replica(loaded):
    class Exiting(Own):
        def predict(self, batch):
            raise SystemExit(0)

    class Ill(Own):
        def health(self):
            return False

    class Raising(Own):
        def health(self):
            raise OSError

    with pytest.raises(Unhealthy, match="ended the process"):
        loaded(Exiting).run(batch(1))
    for cls, said in ((Ill, "says that it is not"), (Raising, "health raised OSError")):
        runtime = loaded(cls)
        runtime.run(batch(1))
        with pytest.raises(Unhealthy, match=said):
            runtime.health()


def test_closed_class_is_told_once(loaded):
    closed = []

    class Closing(Own):
        def close(self):
            closed.append(1)
            raise OSError("already gone")

    runtime = loaded(Closing)
    runtime.health()
    runtime.close()
    runtime.close()
    assert closed == [1]
    with pytest.raises(Unhealthy):
        runtime.run(batch(1))


def test_class_without_an_example_is_tried_with_zeros_and_may_refuse_them(loaded, caplog):
    class NoZeros(Own):
        def predict(self, batch):
            return 1 / np.asarray(batch["x"]) if np.asarray(batch["x"]).all() else None

    runtime = loaded(NoZeros, edges=(8,), max_size=2)
    runtime.warm()
    assert "it takes no rows of zeros" in caplog.text
    assert profiling.measure(runtime._settings, runtime.limits(), runtime.run, 1.0) == ()
    assert runtime.run(batch(2)).outputs["y"].data.tolist() == [0.5]


def test_example_is_what_warm_up_and_profiles_run(loaded):
    seen = []

    class Texts:
        inputs = {"text": "text", "k": "INT64"}
        outputs = {"n": "INT64"}

        def load(self, settings):
            pass

        def example(self, length):
            return {"text": "abcd" * length, "k": 7}

        def predict(self, batch):
            seen.append((batch.rows, set(batch.lengths.tolist()), set(np.asarray(batch["k"]))))
            return [len(text) for text in batch["text"]]

    runtime = loaded(Texts, edges=(8, 16), max_size=2, max_tokens=1000, max_length=16)
    runtime.warm()
    assert seen == [(2, {16}, {7}), (1, {16}, {7}), (2, {8}, {7}), (1, {8}, {7})]
    profile = profiling.measure(runtime._settings, runtime.limits(), runtime.run, 1.0)
    assert {(rows, length) for rows, length, _ in profile} >= {(1, 8), (2, 16)}


def test_example_that_is_wrong_fails_the_start(loaded):
    class Wrong(Own):
        def example(self, length):
            return {"z": [1.0]}

    with pytest.raises(LoadError, match="must return a dictionary with x"):
        loaded(Wrong).warm()


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, ("a", 1)),
        ({"length_input": "b"}, ("b", 2)),
        ({"length_input": "b", "length_axis": 2}, ("b", 2)),
        ({"length_input": "t"}, ("t", 0)),
    ],
)
def test_settings_may_name_another_length(loaded, settings, found):
    class Several(Own):
        inputs = {"a": "INT64[?]", "b": "FP32[80, ?]", "t": "text"}

    limits = loaded(Several, **settings).limits()
    assert (limits.length_input, limits.length_axis) == found


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"length_input": "z"}, "lengths.input is z; declared are x"),
        ({"length_input": "x"}, "'x' is FP32.1.: axis 0 has no length"),
        ({"mask_input": "x"}, "lengths.mask is for models"),
    ],
)
def test_length_that_there_is_not_is_refused(loaded, settings, said):
    with pytest.raises(LoadError, match=said):
        loaded(Own, **settings)


def test_text_that_is_no_utf8_is_the_callers_fault(loaded):
    class Texts(Own):
        inputs = {"x": "text"}

    data = np.empty(1, object)
    data[0] = b"\xff"
    given = Batch(1, np.ones(1, np.int64), {"x": Ragged("BYTES", data, ((),))})
    with pytest.raises(BadRows, match="input 'x' is no UTF-8 text"):
        loaded(Texts).run(given)


class Panic(BaseException):
    """As extensions in Rust raise it."""


@pytest.mark.parametrize("raised", [Panic("x"), KeyboardInterrupt(), MemoryError()])
def test_whatever_is_raised_is_the_batchs(loaded, raised):
    class Panicking(Own):
        def predict(self, batch):
            raise raised

    with pytest.raises(RunError, match=f"raised {type(raised).__name__}"):
        loaded(Panicking).run(batch(1))


def test_coroutine_that_exits_ends_the_replica(loaded):
    class Exiting(Own):
        async def predict(self, batch):
            raise SystemExit(0)

    with pytest.raises(Unhealthy, match="ended the process"):
        loaded(Exiting).run(batch(1))


def test_answers_of_one_half_are_not_those_of_the_next(loaded):
    """A class may fill the same array again."""

    class Reusing(Own):
        buffer = np.zeros((4, 1), np.float32)

        def predict(self, batch):
            if (batch["x"].stacked == 7).any():
                raise ValueError
            out = self.buffer[: batch.rows]
            out[:] = batch["x"].stacked * 10
            return out

    assert answers(run_bisected(loaded(Reusing), batch(1, 2, 7, 3))) == [10.0, 20.0, 30.0]


def test_words_of_a_row_error_can_always_be_sent(loaded):
    class Odd(RowError):
        def __init__(self):
            self.args = ("\ud800",)

    class Failing(Own):
        def predict(self, batch):
            return [Odd()] * batch.rows

    (error,) = run_bisected(loaded(Failing), batch(1)).errors
    assert (error.callers_fault, error.message) == (True, "?")


def test_class_that_refuses_zeros_as_the_callers_fault_starts(loaded):
    class Refusing(Own):
        def predict(self, batch):
            raise RowError("zero is not allowed")

    loaded(Refusing, edges=(8,), max_size=1).warm()
