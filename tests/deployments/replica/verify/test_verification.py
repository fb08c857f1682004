"""Tiny models through two real backends: what agrees is accepted, what does not is named."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from deployments.cli import main

pytest.importorskip("openvino")
pytest.importorskip("onnxruntime")


def verify(file, *arguments):
    return CliRunner().invoke(main, ["verify", str(file), "m", *arguments])


def test_a_model_that_agrees_is_accepted_bucket_by_bucket(settings_file, tokens_onnx):
    done = verify(settings_file(source=str(tokens_onnx())))
    assert done.exit_code == 0, done.output
    assert "m: openvino fp32 against onnxruntime fp32, 200 samples" in done.output
    assert "accepted: within max_abs 0.001, max_rel 0.001" in done.output
    assert "1-8" in done.output
    assert "9-64" in done.output


def test_a_bound_that_does_not_hold_is_the_exit_code_and_a_sentence(settings_file, tokens_onnx):
    other = tokens_onnx("other.onnx", scale=3)
    file = settings_file(source=str(tokens_onnx()), accept={"artifact": "other.onnx"})
    assert verify(file).exit_code == 0
    other.write_bytes(tokens_onnx("half.onnx", half=True).read_bytes())
    done = verify(file, "--max-abs", "1e-6")
    assert done.exit_code == 1
    assert "not accepted" in done.output
    assert "output y, rows of 9-64 tokens: max_abs is" in done.output


def test_json_says_all_of_it(settings_file, tokens_onnx):
    file = settings_file(source=str(tokens_onnx()), accept={"top1": 1.0, "max_abs": 0.01})
    found = json.loads(verify(file, "--json").stdout)
    assert found["accepted"] is True
    assert found["tolerances"] == {"max_abs": 0.01, "top1": 1.0}
    assert [each["tokens"] for each in found["measured"]] == ["1-8", "9-64"]
    assert found["measured"][0]["rows"] == 100


def test_the_user_s_samples_are_run_and_what_they_lack_is_drawn(
    settings_file, tokens_onnx, tmp_path
):
    file = settings_file(source=str(tokens_onnx()))
    rows = [json.dumps({"ids": [n % 50, 1]}) for n in range(200)]
    (tmp_path / "s.jsonl").write_text("\n".join(rows))
    done = verify(file, "--samples-file", str(tmp_path / "s.jsonl"))
    assert done.exit_code == 0, done.output
    assert "250 samples, 200 of them given" in done.output
    (tmp_path / "s.jsonl").write_text("\n".join(rows[:199]))
    few = verify(file, "--samples-file", str(tmp_path / "s.jsonl"))
    assert few.exit_code == 2
    assert "has 199 samples, a verdict takes 200 at least" in few.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--against", "openvino"], "is what is to be verified"),
        (["--against", "nothing"], "'nothing' is not valid; must be RUNTIME"),
        (["--samples", "199"], "Invalid value for '--samples'"),
        (["--samples-file", "none.npz"], "no such file"),
        (["--top1", "2"], "Invalid value for '--top1'"),
        (["--max-abs", "nan"], "--max-abs is nan; must be a finite number"),
    ],
)
def test_what_is_asked_wrongly_is_said_in_a_line(settings_file, tokens_onnx, arguments, said):
    done = verify(settings_file(source=str(tokens_onnx())), *arguments)
    assert done.exit_code == 2
    assert said in done.output


def test_a_model_that_the_file_lacks_is_said(settings_file, tokens_onnx):
    file = settings_file(source=str(tokens_onnx()))
    done = CliRunner().invoke(main, ["verify", str(file), "n"])
    assert (done.exit_code, done.output.strip()) == (2, f"{file} has no model 'n'; it has m")


def test_a_reference_with_other_outputs_says_nothing_of_these(settings_file, tokens_onnx, tmp_path):
    from onnx import TensorProto, helper

    names = {"x": [2], "a": [2], "b": [2]}
    info = {
        n: helper.make_tensor_value_info(n, TensorProto.FLOAT, ["r", *s]) for n, s in names.items()
    }
    for file, renamed in (("one.onnx", "a"), ("two.onnx", "c")):
        info["c"] = helper.make_tensor_value_info("c", TensorProto.FLOAT, ["r", 2])
        nodes = [helper.make_node("Neg", ["x"], [renamed]), helper.make_node("Abs", ["x"], ["b"])]
        graph = helper.make_graph(nodes, "g", [info["x"]], [info[renamed], info["b"]])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 9
        (tmp_path / file).write_bytes(model.SerializeToString())
    done = verify(settings_file(source="one.onnx"), "--artifact", str(tmp_path / "two.onnx"))
    assert done.exit_code == 2
    assert "the reference has no output a, it has c, b" in done.output


def test_images_are_compared_as_rows_without_length(settings_file, tmp_path):
    from onnx import TensorProto, helper

    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["r", 3, 4, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["r", 3, 4, 4])
    graph = helper.make_graph([helper.make_node("Tanh", ["pixels"], ["y"])], "g", [pixels], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    done = verify(settings_file(source="m.onnx"))
    assert done.exit_code == 0, done.output
    np.savez(tmp_path / "s.npz", pixels=np.ones((200, 3, 4, 4), np.float32))
    given = verify(settings_file(source="m.onnx"), "--samples-file", str(tmp_path / "s.npz"))
    assert "200 samples, 200 of them given" in given.output


def test_the_fingerprint_is_shown_stored_and_then_compared(settings_file, tokens_onnx, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    file = settings_file(source=str(tokens_onnx()))
    arguments = ["check", str(file), "--fingerprint", "m"]
    shown = CliRunner().invoke(main, arguments)
    assert (shown.exit_code, "sha256:" in shown.output) == (0, True)
    assert not (tmp_path / "preprocessing.json").exists()
    assert CliRunner().invoke(main, [*arguments, "--write"]).exit_code == 0
    assert verify(file).exit_code == 0
    (tmp_path / "tokenizer.json").write_text('{"another": 1}')
    refused = verify(file)
    assert refused.exit_code == 2
    assert "preprocessing.json: tokenizer is" in refused.output
