"""Same batches through both sides; whose fault it is when one of them fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deployments.replica.verify.agreement import Interval, Tolerances
from deployments.replica.verify.samples import Sample
from deployments.replica.verify.verification import (
    ComparisonPlan,
    NotAccepted,
    compare,
    matched,
    reference_for,
    runtime_label,
)
from deployments.settings.reference import CannotVerify
from runtimes.errors import BadRows, LoadError, RunError
from runtimes.types import Batch, Limits, Ragged, Result, RuntimeSettings, StageTimes, TensorSpec

SHORT, LONG = Interval(1, 4), Interval(5, 16)


class Summing:
    """`ids` → `sum` of each row, and whatever `spoil` makes of it."""

    def __init__(self, fault: Exception | None = None, outputs: tuple[str, ...] = ("sum",)) -> None:
        self.fault = fault
        self.outputs = outputs
        self.seen: list[list[int]] = []

    def limits(self) -> Limits:
        return Limits(
            (TensorSpec("ids", "INT64", (-1, -1)),),
            tuple(TensorSpec(name, "FP32", (-1,)) for name in self.outputs),
            length_input="ids",
        )

    def run(self, batch: Batch) -> Result:
        if self.fault is not None:
            raise self.fault
        self.seen.append(batch.lengths.tolist())
        ids, ends = batch.inputs["ids"].data, np.cumsum(batch.lengths)
        sums = np.array([part.sum() for part in np.split(ids, ends[:-1])], np.float32)
        ragged = Ragged("FP32", sums, ((),) * batch.rows)
        return Result(dict.fromkeys(self.outputs, ragged), StageTimes(), 0)

    load = warm = health = close = lambda self: None


class Breaking(Summing):
    """As `Summing`, but of more than 8 tokens it makes infinity."""

    def run(self, batch: Batch) -> Result:
        result = super().run(batch)
        sums = result.outputs["sum"].data
        sums[sums > 8] = np.inf
        return result


class Sparse(Summing):
    """`ids` → three entries: of a row of n tokens entry n with weight n, and `others`, by entry."""

    def __init__(self, others: dict[int, float]) -> None:
        super().__init__()
        self.others = others

    def limits(self) -> Limits:
        both = (TensorSpec("indices", "INT64", (-1, 3)), TensorSpec("values", "FP32", (-1, 3)))
        return Limits((TensorSpec("ids", "INT64", (-1, -1)),), both, length_input="ids")

    def run(self, batch: Batch) -> Result:
        rows = [sorted({**self.others, n: float(n)}.items()) for n in batch.lengths.tolist()]
        rows = [[(-1, 0.0)] * (3 - len(row)) + row for row in rows]
        indices = np.array([[index for index, _ in row] for row in rows], np.int64)
        values = np.array([[value for _, value in row] for row in rows], np.float32)
        outputs = {
            "indices": Ragged("INT64", indices.reshape(-1), ((3,),) * batch.rows),
            "values": Ragged("FP32", values.reshape(-1), ((3,),) * batch.rows),
        }
        return Result(outputs, StageTimes(), 0)


def plan(max_size: int = 2, *, finite: bool = False) -> ComparisonPlan:
    samples = [Sample({"ids": np.ones(n, np.int64)}, n) for n in (3, 9, 1, 16, 2)]
    return ComparisonPlan(samples, (SHORT, LONG), max_size, 32, Tolerances(), finite)


def test_both_sides_get_the_same_batches_bucket_by_bucket_with_progress():
    reference, candidate, told = Summing(), Summing(), list[float]()
    verdict = compare(reference, candidate, plan(), told.append)
    assert reference.seen == candidate.seen == [[3, 1], [2], [9, 16]]
    assert told == [0.4, 0.6, 1.0]
    assert verdict.accepted
    assert verdict.samples == 5


@pytest.mark.parametrize(
    ("others", "accepted"),
    [
        ({100: 0.5, 200: 0.4}, True),
        ({100: 0.5, 20: 0.4}, True),  # as large as the one that was cut off
        ({100: 0.5, 200: 0.3}, False),
        ({100: 0.4, 200: 0.5}, False),
        ({101: 0.5, 200: 0.4}, False),
        ({100: 0.5}, False),
    ],
)
def test_sparse_vectors_are_compared_entry_by_entry(others, accepted):
    reference, candidate = Sparse({100: 0.5, 200: 0.4}), Sparse(others)
    verdict = compare(reference, candidate, plan(), lambda share: None)
    assert verdict.accepted is accepted
    assert {each.output for each in verdict.measured} == {"values"}


def test_a_candidate_that_fails_is_not_accepted():
    with pytest.raises(NotAccepted, match="the model fails on a batch of 2: no memory"):
        compare(Summing(), Summing(RunError("no memory")), plan(), lambda share: None)


def test_an_answer_that_is_not_finite_is_not_accepted_even_where_the_reference_has_the_same():
    with pytest.raises(NotAccepted, match="answer to sample 1 and to 1 more of its batch is not"):
        compare(Breaking(), Breaking(), plan(finite=True), lambda share: None)
    assert compare(Breaking(), Breaking(), plan(), lambda share: None).accepted
    assert compare(Summing(), Summing(), plan(finite=True), lambda share: None).accepted


@pytest.mark.parametrize("fault", [RunError("no memory"), BadRows("an id is too large")])
def test_a_reference_that_fails_says_nothing_of_the_candidate(fault):
    with pytest.raises(CannotVerify, match=r"the reference .*: (no memory|an id)"):
        compare(Summing(fault), Summing(), plan(), lambda share: None)


def test_outputs_are_matched_by_name_or_for_being_the_only_ones():
    both = ("a", "b")
    assert matched(Summing(outputs=both).limits(), Summing(outputs=("b", "a")).limits()) == [
        ("b", "b"),
        ("a", "a"),
    ]
    assert matched(Summing(outputs=("x",)).limits(), Summing().limits()) == [("x", "sum")]
    assert matched(Summing(outputs=both).limits(), Summing(outputs=("b",)).limits()) == [("b", "b")]


def test_an_output_that_would_not_be_looked_at_is_said():
    with pytest.raises(CannotVerify, match="has no output c, it has a, b"):
        matched(Summing(outputs=("a", "b")).limits(), Summing(outputs=("a", "c")).limits())


class Constant(Summing):
    """Answers 1, whatever the row holds: a softmax over one class."""

    def run(self, batch: Batch) -> Result:
        ones = np.ones(batch.rows, np.float32)
        return Result({"sum": Ragged("FP32", ones, ((),) * batch.rows)}, StageTimes(), 0)


def test_a_model_that_answers_all_samples_alike_is_refused_even_if_its_reference_does_too():
    with pytest.raises(NotAccepted, match="answers all 5 samples alike"):
        compare(Constant(), Constant(), plan(), lambda share: None)


def test_samples_that_are_all_the_same_say_nothing_of_it():
    same = [Sample({"ids": np.ones(3, np.int64)}, 3)] * 2
    asked = ComparisonPlan(same, (SHORT, LONG), 2, 32, Tolerances())
    assert compare(Constant(), Constant(), asked, lambda share: None).accepted


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    file = tmp_path / "m.onnx"
    file.write_bytes(b"\x08\x09")
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import numpy as np
    from safetensors.numpy import save_file

    (tmp_path / "config.json").write_text("{}")
    save_file({"w": np.zeros(1, np.float32)}, str(tmp_path / "model.safetensors"))
    return tmp_path


def candidate(source: Path | None, runtime: str = "openvino", **fields) -> RuntimeSettings:
    cache = Path("/nonexistent") if source is None else source.parent / "cache"
    return RuntimeSettings("m", runtime, source, cache, **fields)


@pytest.mark.parametrize(
    ("source", "runtime", "precision", "chosen"),
    [
        ("graph", "openvino", "bf16", "onnxruntime fp32"),
        ("graph", "onnxruntime", "fp32", "openvino fp32"),
        ("graph", "openvino", "fp32", "onnxruntime fp32"),
        ("folder", "openvino", "fp32", "torch fp32"),
        ("folder", "torch", "bf16", "torch fp32"),
        ("folder", "torch", "fp32", "onnxruntime fp32"),
    ],
)
def test_a_graph_is_compared_with_onnx_runtime_a_folder_with_torch_unless_it_is_that(
    request, source, runtime, precision, chosen
):
    file = request.getfixturevalue(source)
    assert runtime_label(reference_for(candidate(file, runtime, precision=precision))) == chosen


def test_pooling_that_the_settings_ask_for_goes_along_and_rules_torch_out(folder):
    options = {"pooling": "cls", "streams": 1}
    wanted = reference_for(candidate(folder, options=options))
    assert runtime_label(wanted) == "onnxruntime fp32"
    assert wanted.options == {"pooling": "cls"}


def test_the_reference_may_be_named_with_its_precision(folder):
    assert runtime_label(reference_for(candidate(folder), "torch:bf16")) == "torch bf16"
    assert runtime_label(reference_for(candidate(folder), "onnxruntime")) == "onnxruntime fp32"


@pytest.mark.parametrize("against", ["tourch", "torch:fp12", ":", "torch:"])
def test_a_reference_that_is_none_is_refused(folder, against):
    if against == "torch:":
        assert runtime_label(reference_for(candidate(folder), against)) == "torch fp32"
        return
    with pytest.raises(CannotVerify, match="is not valid; must be RUNTIME or RUNTIME:PRECISION"):
        reference_for(candidate(folder), against)


def test_a_model_is_not_compared_with_itself(graph):
    with pytest.raises(CannotVerify, match="openvino in fp32 is what is to be verified"):
        reference_for(candidate(graph), "openvino")


def test_another_artifact_makes_the_same_runtime_a_reference(graph):
    other = graph.with_name("original.onnx")
    other.write_bytes(graph.read_bytes())
    wanted = reference_for(candidate(graph), "openvino", other)
    assert (runtime_label(wanted), wanted.source) == ("openvino fp32", other)
    assert (
        runtime_label(reference_for(candidate(graph, "onnxruntime"), None, other))
        == "onnxruntime fp32"
    )


def test_what_one_runtime_alone_runs_has_nothing_to_be_compared_with(tmp_path):
    (tmp_path / "m.xml").write_text("<?xml version='1.0'?><net/>")
    (tmp_path / "m.bin").write_bytes(b"")
    with pytest.raises(CannotVerify, match=r"m\.xml is run by openvino alone"):
        reference_for(candidate(tmp_path / "m.xml"))
    assert (
        runtime_label(reference_for(candidate(tmp_path / "m.xml", precision="bf16")))
        == "openvino fp32"
    )


def test_a_model_without_an_artifact_cannot_be_verified():
    with pytest.raises(CannotVerify, match="synthetic model has no artifact"):
        reference_for(candidate(None, "synthetic"))


def test_a_missing_artifact_is_said(tmp_path):
    with pytest.raises(LoadError, match="does not exist"):
        reference_for(candidate(tmp_path / "none.onnx"))
