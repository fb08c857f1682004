"""Runtimes of a few lines whose answers a test can tell by heart.

`Encoder` gives each token's id and type back (ragged) and the row's sums (dense); `Shout` takes
BYTES and gives them back in capitals, its second output being their lengths. `Moody` fails as told,
`Gated` waits until it may.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from runtimes.errors import BadRows
from runtimes.types import DTYPES, Batch, Limits, Ragged, Result, StageTimes, TensorSpec


class FakeRuntime:
    """A backend that is always ready. `batches` keeps what it was given."""

    LIMITS: Limits

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def load(self) -> None: ...
    def warm(self) -> None: ...
    def health(self) -> None: ...
    def close(self) -> None: ...

    def limits(self) -> Limits:
        return self.LIMITS


class Encoder(FakeRuntime):
    LIMITS = Limits(
        inputs=(TensorSpec("ids", "INT64", (-1, -1)), TensorSpec("types", "INT64", (-1, -1))),
        outputs=(TensorSpec("tokens", "FP32", (-1, -1, 2)), TensorSpec("sums", "FP32", (-1, 2))),
        length_input="ids",
        optional_inputs=("types",),
    )

    def run(self, batch: Batch) -> Result:
        self.batches.append(batch)
        ids = batch.inputs["ids"]
        types = batch.inputs.get("types")
        kinds = np.zeros_like(ids.data) if types is None else types.data
        if types is not None and types.shapes != ids.shapes:
            raise BadRows("types and ids differ in shape")
        pairs = np.stack([ids.data, kinds], axis=1).astype(np.float32)
        ends = np.cumsum(batch.lengths)
        sums = np.stack([part.sum(axis=0) for part in np.split(pairs, ends[:-1])])
        outputs = {
            "tokens": Ragged("FP32", pairs.reshape(-1), tuple((int(n), 2) for n in batch.lengths)),
            "sums": Ragged("FP32", sums.reshape(-1), ((2,),) * batch.rows),
        }
        wanted = outputs if batch.outputs is None else batch.outputs
        padded = batch.rows * int(batch.lengths.max())
        return Result({name: outputs[name] for name in wanted}, StageTimes(), padded)


class Sparse(FakeRuntime):
    """An entry for each id up to 4: of row [7, 9] the weights 0.5 and 1 of 7 and 9. Of an id 0
    there is no weight, of 9999 none that is finite."""

    LIMITS = Limits(
        inputs=(TensorSpec("ids", "INT64", (-1, -1)),),
        outputs=(TensorSpec("indices", "INT64", (-1, 4)), TensorSpec("values", "FP32", (-1, 4))),
        length_input="ids",
    )

    def run(self, batch: Batch) -> Result:
        self.batches.append(batch)
        indices = np.full((batch.rows, 4), -1, np.int64)
        values = np.zeros((batch.rows, 4), np.float32)
        for row, ids in enumerate(batch.inputs["ids"].rows()):
            indices[row, : len(ids)] = ids
            values[row, : len(ids)] = np.arange(1, len(ids) + 1) / 2
            values[row, : len(ids)][ids == 9999] = np.inf
        indices[indices == 0] = -1
        shapes = ((4,),) * batch.rows
        outputs = {
            "indices": Ragged("INT64", indices.reshape(-1), shapes),
            "values": Ragged("FP32", values.reshape(-1), shapes),
        }
        wanted = outputs if batch.outputs is None else batch.outputs
        return Result({name: outputs[name] for name in wanted}, StageTimes(), batch.rows)


class Shout(FakeRuntime):
    LIMITS = Limits(
        inputs=(TensorSpec("text", "BYTES", (-1, -1)),),
        outputs=(TensorSpec("loud", "BYTES", (-1, -1)), TensorSpec("size", "INT32", (-1, -1))),
        length_input="text",
    )

    def run(self, batch: Batch) -> Result:
        self.batches.append(batch)
        text = batch.inputs["text"]
        loud = np.empty(text.data.size, dtype=object)
        loud[:] = [item.upper() for item in text.data.tolist()]
        size = np.array([len(item) for item in text.data.tolist()], dtype=DTYPES["INT32"])
        outputs = {
            "loud": Ragged("BYTES", loud, text.shapes),
            "size": Ragged("INT32", size, text.shapes),
        }
        return Result(outputs, StageTimes(), batch.rows)


class Moody(FakeRuntime):
    """One row's value is its answer. `mood(value)` gives the exception to raise for it, or None;
    a batch raises what the first of its rows that has one says."""

    LIMITS = Limits(
        inputs=(TensorSpec("x", "INT64", (-1, 1)),),
        outputs=(TensorSpec("y", "INT64", (-1, 1)),),
    )

    def __init__(self, mood: Callable[[int], Exception | None]) -> None:
        super().__init__()
        self.mood = mood

    def run(self, batch: Batch) -> Result:
        self.batches.append(batch)
        values = batch.inputs["x"]
        for value in values.data.tolist():
            fault = self.mood(value)
            if fault is not None:
                raise fault
        return Result({"y": values}, StageTimes(run_s=0.001), batch.rows)


class Quotient(FakeRuntime):
    """One row's answer is 1 / its value: infinite for 0."""

    LIMITS = Limits(
        inputs=(TensorSpec("x", "INT64", (-1, 1)),),
        outputs=(TensorSpec("y", "FP32", (-1, 1)),),
    )

    def run(self, batch: Batch) -> Result:
        self.batches.append(batch)
        values = batch.inputs["x"]
        with np.errstate(divide="ignore"):
            answers = np.float32(1.0) / values.data.astype(np.float32)
        return Result({"y": Ragged("FP32", answers, values.shapes)}, StageTimes(), batch.rows)


class Gated(FakeRuntime):
    """Runs when let; says when it has begun."""

    LIMITS = Moody.LIMITS

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.let = threading.Event(), threading.Event()

    def run(self, batch: Batch) -> Result:
        self.begun.set()
        assert self.let.wait(5.0)
        self.batches.append(batch)
        return Result({"y": batch.inputs["x"]}, StageTimes(), batch.rows)
