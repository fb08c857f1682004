"""A settings file may name files by URL: what is wrong with one is told where it stands, and
nothing is fetched to find out."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.settings.plain import SettingsErrors
from deployments.settings_files.load import load

HEX = "0" * 64
FILE = """models:
  a:
    runtime: openvino
    precision: %s
    source: %s
    options: %s
    accept: {samples_file: "%s"}
"""
URL = f"https://127.0.0.1:1/m.onnx#sha256={HEX}"


def written(tmp_path: Path, source: str, rows: str = URL, options: str = "{}") -> Path:
    path = tmp_path / "some.yaml"
    precision = "fp32" if options == "{}" else "int8"
    path.write_text(FILE % (precision, source, options, rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("here", [True, False])
def test_urls_stay_as_they_are_written(tmp_path: Path, here: bool) -> None:
    model = load(written(tmp_path, URL), here=here).models["a"]
    assert (model.source, model.accept.samples_file) == (URL, URL)


@pytest.mark.parametrize("here", [True, False])
def test_each_url_without_a_digest_is_told_in_its_place(tmp_path: Path, here: bool) -> None:
    bare = "https://127.0.0.1:1/x.npz"
    path = written(tmp_path, "s3://bucket/minilm/", bare, f"{{calibration: {bare}}}")
    with pytest.raises(SettingsErrors) as refused:
        load(path, here=here)
    said = [str(each).removeprefix(f"{path}:") for each in refused.value.mistakes]
    places = [line.partition(": ")[2].split(": ")[0] for line in said if "has no digest" in line]
    wanted = {"source", "accept.samples_file", "options.calibration"}
    assert set(places) == {f"models.a.{each}" for each in wanted}


def test_a_file_url_is_looked_for_where_the_model_will_run(tmp_path: Path) -> None:
    path = written(tmp_path, f"file://{tmp_path}/gone.onnx")
    with pytest.raises(SettingsErrors, match=r"models\.a\.source: no file or folder .*gone\.onnx"):
        load(path)
    assert load(path, here=False).models["a"].source == f"file://{tmp_path}/gone.onnx"
