"""`headrace try`: one model in this process, rows as a caller would send them."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from deployments.cli import main
from deployments.settings.image import ImageSettings
from deployments.settings.model import ModelSettings
from deployments.tools.trying import unprepared

CODE = """
import numpy as np


class Own:
    inputs = {"x": "FP32[?]"}
    outputs = {"sum": "FP32", "of_batch": "INT64"}

    def load(self, settings):
        self.dependent = settings.get("dependent", False)

    def predict(self, batch):
        rows = batch.rows if self.dependent else 1
        return {"sum": [row.sum() for row in batch["x"]], "of_batch": np.full(batch.rows, rows)}
"""


@pytest.fixture
def tried(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "own.py").write_text(CODE)

    def run(*rows, settings="{}"):
        file = tmp_path / "own.yaml"
        file.write_text(
            "models:\n  own:\n    runtime: python\n    source: .:own:Own\n"
            f"    options: {{settings: {settings}}}\n"
        )
        return CliRunner().invoke(main, ["try", str(file), "own", *rows])

    return run


def test_rows_are_answered_as_by_a_server(tried):
    done = tried('{"x": [1, 2.5]}', "[4]")
    assert done.exit_code == 0, done.output
    assert 'row 0: {"sum":3.5,"of_batch":1}' in done.output
    assert 'row 1: {"sum":4.0,"of_batch":1}' in done.output
    assert "takes x FP32 [-1]" in done.output


def test_without_rows_one_is_made_up(tried):
    done = tried()
    assert done.exit_code == 0, done.output
    assert 'row 0: {"sum":0.0,"of_batch":1}' in done.output


def test_answer_that_depends_on_the_batch_is_said(tried):
    done = tried("[1]", "[2]", settings="{dependent: true}")
    assert "alone have another answer than in this batch: 0, 1" in done.output


@pytest.mark.parametrize("row", ['{"y": [1]}', "nonsense", '["a"]'])
def test_row_that_is_none_is_refused(tried, row):
    done = tried(row)
    assert done.exit_code == 2, done.output
    assert "error:" in done.output


def test_row_that_is_no_json_is_named_before_anything_loads(tried):
    done = tried("{x: 1}")
    assert done.exit_code == 2
    assert "error: the ROW '{x: 1}' is no JSON (" in done.output
    assert "must be one instance as `:predict` takes it, such as '{" in done.output
    assert "loading" not in done.output


def test_row_that_the_model_cannot_take_is_met_with_the_form(tried):
    done = tried('{"y": [1]}')
    assert "'y'" in done.output
    assert "A ROW must be one instance as `:predict` takes it" in done.output


def test_each_phase_is_told_on_standard_error(tried):
    done = tried("[1]", "[2]")
    said = ["own: loading", "own: warming up", "own: running 2 rows"]
    assert done.stderr.splitlines() == said
    assert "running" not in done.stdout


@pytest.mark.parametrize(
    ("task", "image", "row", "said"),
    [
        ("embed", None, '"a text"', "takes tokens: .*input_ids.* texts, at POST /v1/embeddings"),
        ("classify", None, '{"text": "a"}', "takes texts, at POST /v1/classify"),
        ("rerank", None, '["a", "b"]', "takes texts, at POST /v1/rerank"),
        ("embed", ImageSettings(size=8), '"aGk="', "takes pixels: .* at POST /v1/embeddings"),
        ("classify", ImageSettings(size=8), '"aGk="', r"POST /v1/models/NAME:classify$"),
        ("embed", None, '{"input_ids": [101, 102]}', None),
        ("embed", ImageSettings(size=8), "[[0.5]]", None),
    ],
)
def test_text_for_a_network_of_tokens_is_met_with_where_texts_go(tmp_path, task, image, row, said):
    (tmp_path / "config.json").touch()
    model = ModelSettings(runtime="torch", source="m", task=task, image=image)
    found = unprepared(model, tmp_path, [row])
    assert found is None if said is None else re.search(said, found)


def test_a_text_for_a_file_may_be_its_own(tmp_path):
    model = ModelSettings(runtime="onnxruntime", source="m.onnx")
    assert unprepared(model, tmp_path / "m.onnx", ['"a text"']) is None


def test_a_class_that_takes_texts_is_given_them(tmp_path):
    """Beside it lies the folder's config.json of the network that it loads itself."""
    (tmp_path / "config.json").touch()
    model = ModelSettings(runtime="python", source=f"{tmp_path}:own:Own")
    assert unprepared(model, tmp_path, ['{"text": "a text"}']) is None


def test_model_that_there_is_not_is_named(tried, tmp_path):
    tried()
    done = CliRunner().invoke(main, ["try", str(tmp_path / "own.yaml"), "absent"])
    assert done.exit_code == 2
    assert "has no model 'absent'; it has own" in done.output
