"""How torch runs a model: compiled without recompiling, in integers, with images' layouts."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtimes import catalog
from runtimes.errors import LoadError, MissingBackend
from runtimes.torch.runtime import TorchRuntime
from runtimes.types import Batch, Ragged, RuntimeSettings

torch = pytest.importorskip("torch", reason="pip install 'headrace[torch]'")
sys.path.append(str(Path(__file__).parents[1] / "conformance"))
from tiny_models import bert_folder  # noqa: E402

from runtimes.torch import modes  # noqa: E402
from runtimes.torch.runner import MemoryBounds  # noqa: E402

ON_GPU_GRAPHS = {"device": "cuda", "mode": "cuda_graphs"}
WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert_folder(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`x` FP32 [-1, 3, 8, 8] → `y` [-1, 4, 8, 8], a convolution."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)

        def forward(self, x: Any) -> Any:
            return {"y": torch.relu(self.conv(x))}

    torch.manual_seed(1)
    sizes = {"x": {0: torch.export.Dim("batch", max=64)}}
    program = torch.export.export(Net().eval(), (torch.ones(2, 3, 8, 8),), dynamic_shapes=sizes)
    file = tmp_path_factory.mktemp("pictures") / "net.pt2"
    torch.export.save(program, file)
    return file


def runtime(source: Path, cache: Path, **fields: Any) -> TorchRuntime:
    made = TorchRuntime(RuntimeSettings("m", "torch", source, cache, **{"threads": 1, **fields}))
    made.load()
    return made


def ids(*lengths: int) -> Batch:
    data = np.random.default_rng(2).integers(1, 90, sum(lengths))
    ragged = Ragged("INT64", data, tuple((length,) for length in lengths))
    return Batch(len(lengths), np.array(lengths), {"input_ids": ragged})


def embeddings(model: TorchRuntime, batch: Batch) -> np.ndarray:
    return model.run(batch).outputs["sentence_embedding"].data.reshape(batch.rows, -1)


# ---- compiled -----------------------------------------------------------------------------


def test_compiled_model_answers_as_eager_and_needs_no_graph_more(bert, tmp_path, monkeypatch):
    stance = torch.compiler.set_stance
    # Where it would fall back to running uncompiled, it fails here.
    monkeypatch.setattr(torch.compiler, "set_stance", lambda _: stance("fail_on_recompile"))
    eager = runtime(bert, tmp_path, task="embed")
    model = runtime(bert, tmp_path, task="embed", options={"mode": "compile"})
    for lengths in ((1,), (2, 1), (5,) * 5, (64,), (3, 64, 7), (9,) * 33):
        found = embeddings(model, ids(*lengths))
        assert np.abs(found - embeddings(eager, ids(*lengths))).max() <= 1e-5
    assert model.limits().platform == "pytorch_compile"


def test_compiled_images_answer_as_eager(pictures, tmp_path):
    pixels = np.random.default_rng(3).normal(size=3 * 192).astype(np.float32)
    batch = Batch(3, np.ones(3, np.int64), {"x": Ragged("FP32", pixels, ((3, 8, 8),) * 3)})
    eager = runtime(pictures, tmp_path).run(batch).outputs["y"]
    compiled = runtime(pictures, tmp_path, options={"mode": "compile"}).run(batch).outputs["y"]
    assert compiled.shapes == eager.shapes
    assert np.abs(compiled.data - eager.data).max() <= 1e-5


# ---- integers -----------------------------------------------------------------------------


def test_integer_answers_are_near_those_in_float(bert, tmp_path):
    batch = ids(3, 40, 1, 64)
    exact = embeddings(runtime(bert, tmp_path, task="embed"), batch)
    model = runtime(bert, tmp_path, task="embed", precision="int8")
    found = embeddings(model, batch)
    assert (found * exact).sum(1).min() >= 0.99
    assert np.abs(found - exact).max() > 0  # it did compute in integers
    assert model.limits().precision == "int8"


def test_integer_row_does_not_depend_on_a_loud_row_beside_it():
    from runtimes.torch.int8 import linear

    torch.manual_seed(0)
    weight, scales, bias = torch.randint(-127, 128, (8, 8)).to(torch.int8), torch.ones(8), None
    quiet, loud = torch.randn(1, 8), 1e4 * torch.randn(1, 8)
    bias = torch.zeros(8)
    alone = linear(quiet, weight.t(), scales, bias)
    together = linear(torch.cat([quiet, loud]), weight.t(), scales, bias)
    assert torch.equal(together[:1], alone)


def test_token_of_zeros_stays_the_bias():
    from runtimes.torch.int8 import linear

    bias = torch.arange(8.0)
    weight = torch.full((8, 8), 127, dtype=torch.int8)
    assert torch.equal(linear(torch.zeros(2, 3, 8), weight, torch.ones(8), bias)[1, 2], bias)


# ---- images -------------------------------------------------------------------------------


def test_channels_last_answers_the_same(pictures, tmp_path):
    pixels = np.random.default_rng(3).normal(size=2 * 192).astype(np.float32)
    batch = Batch(2, np.ones(2, np.int64), {"x": Ragged("FP32", pixels, ((3, 8, 8),) * 2)})
    plain = runtime(pictures, tmp_path).run(batch).outputs["y"]
    chosen = {"layout": "NCHW", "channels_last": True}
    last = runtime(pictures, tmp_path, options=chosen).run(batch).outputs["y"]
    assert last.shapes == plain.shapes
    assert np.abs(last.data - plain.data).max() <= 1e-5


def test_wrong_layout_is_refused_with_the_inputs_name(pictures, tmp_path):
    with pytest.raises(LoadError, match=r"input 'x' is .* set layout to NCHW"):
        runtime(pictures, tmp_path, options={"layout": "NHWC"})


# ---- what is put beforehand ---------------------------------------------------------------


def test_prefetched_batch_answers_as_any_other(bert, tmp_path):
    model = runtime(bert, tmp_path, task="embed")
    first, second = ids(3, 5), ids(7)
    plain = embeddings(model, second)
    model.prefetch(second)
    embeddings(model, first)  # another batch came first: what was put for nothing is let go
    model.prefetch(second)
    assert np.array_equal(embeddings(model, second), plain)


@pytest.mark.parametrize("chosen", [{}, {"pinned": False}, ON_GPU_GRAPHS], ids=str)
def test_batches_put_while_others_compute_answer_as_any_other(bert, tmp_path, chosen):
    """As a replica does: one thread puts the next batch while another runs the one before it."""
    if chosen == ON_GPU_GRAPHS and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA GPU (unverified here: docs/runtimes.md)")
    fields = {"edges": (8, 64), "max_size": 8, "max_tokens": 256}
    model = runtime(bert, tmp_path, task="embed", options=chosen, **fields)
    batches = [ids(*(1 + (place * 7 + row) % 60 for row in range(4))) for place in range(12)]
    plain = [embeddings(model, batch) for batch in batches]
    with ThreadPoolExecutor(1) as putting:
        for _ in range(4):
            for at, batch in enumerate(batches):
                put = putting.submit(model.prefetch, batches[(at + 1) % len(batches)])
                found = embeddings(model, batch)
                put.result()
                assert np.abs(found - plain[at]).max() <= 1e-5


def test_fault_of_a_prefetched_batch_is_told_by_its_run(bert, tmp_path):
    model = runtime(bert, tmp_path, task="embed")
    good = ids(4)
    wrong = Batch(1, np.array([4]), {"input_ids": Ragged("INT64", np.full(4, 999), ((4,),))})
    model.prefetch(wrong)
    with pytest.raises(Exception, match="999"):
        model.run(wrong)
    embeddings(model, good)


# ---- options ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"mode": "jit"}, "one of eager, compile, cuda_graphs"),
        (
            {"mode": "cuda_graphs", "device": "cpu"},
            "but option 'device' is cpu",
        ),
        ({"device": "gpu"}, "cpu, cuda, cuda:N or auto"),
        ({"channels_last": True}, "needs option 'layout' NCHW"),
        ({"channels_last": True, "layout": "NHWC"}, "needs option 'layout' NCHW"),
        ({"layout": "CHW"}, "one of NCHW, NHWC"),
        ({"warm_s": -1}, "0 or more"),
        ({"gpu_memory_mib": 0}, "1 or more"),
        ({"gpu_memory_mib": 512, "device": "cpu"}, "which option 'device' cpu has not"),
    ],
)
def test_wrong_options_are_told_what_is_right(chosen, message):
    with pytest.raises(LoadError, match=message):
        catalog.check("torch", chosen, "fp32")


class Told(dict[int, float]):
    """The share that torch's allocator may take, by GPU."""

    def __call__(self, share: float, index: int) -> None:
        self[index] = share


def test_models_of_one_process_share_the_sum_of_what_they_may_take():
    told, total = Told(), 10 << 30
    bounds = MemoryBounds(told)
    bounds.set(0, 0, 1024, total)
    assert told == {0: 0.1}
    bounds.set(1, 0, 2048, total)
    bounds.set(2, 1, 5120, total)
    assert told == {0: pytest.approx(0.3), 1: 0.5}
    bounds.set(3, 0, None, total)  # has no bound, so the process can have none
    assert told[0] == 1.0
    bounds.drop(3)
    bounds.drop(0)
    assert told == {0: pytest.approx(0.2), 1: 0.5}
    bounds.set(4, 0, 9_000, total)
    assert told[0] == 1.0
    bounds.drop(9)


def test_closed_model_gives_its_weights_memory_back_at_once(bert, tmp_path):
    """Though cycles hold the modules. On a GPU alone: processors' memory waits for Python."""
    made = runtime(bert, tmp_path, options={"device": "cpu"})
    model, runner = made._loaded()
    weights = list(model.module.parameters())
    assert sum(each.nbytes for each in weights)
    modes.closed(model, made._settings, runner)
    assert sum(each.nbytes for each in weights)
    on_gpu = replace(model, limits=replace(model.limits, device="cuda:0"))
    modes.closed(on_gpu, made._settings, runner)
    assert sum(each.nbytes for each in weights) == 0


@WITHOUT_GPU
def test_asking_for_a_gpu_where_there_is_none_is_an_error_that_says_so(bert, tmp_path):
    with pytest.raises(MissingBackend, match="torch sees no CUDA GPU"):
        runtime(bert, tmp_path, options={"device": "cuda"})
    with pytest.raises(LoadError, match="'mode' is cuda_graphs, but torch sees no CUDA GPU"):
        runtime(bert, tmp_path, options={"mode": "cuda_graphs"})
