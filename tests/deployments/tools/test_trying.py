"""`headrace try`: one model in this process, rows as a caller would send them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from deployments.cli import main

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


def test_model_that_there_is_not_is_named(tried, tmp_path):
    tried()
    done = CliRunner().invoke(main, ["try", str(tmp_path / "own.yaml"), "absent"])
    assert done.exit_code == 2
    assert "has no model 'absent'; it has own" in done.output
