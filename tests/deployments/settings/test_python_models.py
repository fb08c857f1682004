"""A model that is a Python class, in a settings file: what is refused, and with which words."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from deployments.settings.plain import SettingsErrors
from deployments.settings.python_source import folder_of, python_class, with_folder
from deployments.settings_files.load import load
from deployments.settings_files.sources import absolute, resolve

CODE = """
class Own:
    inputs = {"x": "FP32[1]"}
    outputs = {"y": "FP32[1]"}

    def load(self, settings): ...
    def predict(self, batch): ...
"""


@pytest.fixture
def written(tmp_path):
    (tmp_path / "classes").mkdir()
    (tmp_path / "classes/own.py").write_text(CODE)

    def write(model: str) -> Path:
        file = tmp_path / "own.yaml"
        own = textwrap.indent(textwrap.dedent(model).strip(), "    ")
        file.write_text(f"models:\n  own:\n    runtime: python\n{own}\n")
        return file

    return write


def test_class_in_a_folder_beside_the_file_is_taken(written):
    file = written("source: classes:own:Own\noptions: {settings: {trees: 3}}")
    model = load(file).models["own"]
    assert model.source == f"{file.parent}/classes:own:Own"
    assert resolve(model.source) == file.parent / "classes"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("task: tensors", "source: is missing"),
        ("source: classes", "names no class; must be python:my_package.module:ClassName or"),
        ("source: classes:own", "names no class"),
        ("source: python:own", "names no class"),
        ("source: absent:own:Own", "no file or folder"),
        ("source: classes:absent:Own", "there is no module absent in"),
        ("source: classes:own:Absent", "has no class Absent; it has Own"),
        ("source: python:no_such_module:Own", "there is no module no_such_module"),
        ("source: classes:own:Own\nprecision: int8", "python has no precision 'int8'"),
        ("source: classes:own:Own\noptions: {trees: 3}", "unknown option 'trees'"),
        ("source: classes:own:Own\ntask: generate", "which cannot generate"),
        ("source: classes:own:Own\nimage: {size: 8}", "takes an input 'image' as it was sent"),
        ("source: classes:own:Own\naccept: {against: torch}", "no other runtime computes"),
        (
            "source: classes:own:Own\ndependencies: ['--index-url http://x']",
            "must be a requirement such as",
        ),
        ("source: classes:own:Own\ndependencies: xgboost", "must be a list of texts"),
        (
            "source: classes:own:Own\ndependencies: [Sci.Kit==1, torch, 'sci-kit>=1']",
            "requires sci-kit a second time; must be one requirement with 'Sci.Kit==1'",
        ),
    ],
)
def test_mistakes_are_named_before_a_replica_starts(written, model, said):
    with pytest.raises(SettingsErrors) as raised:
        load(written(model))
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("runtime", "model", "said"),
    [
        ("torch", "source: classes:own:Own", "source names a Python class; must be python"),
        ("synthetic", "dependencies: [xgboost]", "only runtime python installs packages"),
    ],
)
def test_other_runtimes_take_no_class_and_no_packages(written, runtime, model, said):
    file = written(model)
    file.write_text(file.read_text().replace("runtime: python", f"runtime: {runtime}"))
    with pytest.raises(SettingsErrors) as raised:
        load(file)
    assert said in str(raised.value)


def test_model_with_packages_is_no_model_of_the_pool(written):
    file = written("source: classes:own:Own\ndependencies: [xgboost]")
    pool = "scaling: {pool: {models: [own], min: 1, max: 1, memory_mib: 100}}"
    file.write_text(f"{file.read_text()}{pool}\n")
    with pytest.raises(SettingsErrors) as raised:
        load(file)
    assert "is own, which has dependencies" in str(raised.value)


@pytest.mark.parametrize(
    ("source", "folder", "entry"),
    [
        ("python:a.b:C", "", "python:a.b:C"),
        ("models/x:m.n:C", "models/x", "m.n:C"),
        ("package:p/x:m:C", "package:p/x", "m:C"),
        ("https://host:8080/x.tar.gz#sha256=ab:m:C", "https://host:8080/x.tar.gz#sha256=ab", "m:C"),
    ],
)
def test_source_is_taken_apart(source, folder, entry):
    found = python_class(source)
    assert found is not None
    assert (found.folder, found.entry) == (folder, entry)
    assert folder_of(source) == (folder or source)
    assert with_folder(source, "/there") == (f"/there:{entry}" if folder else "/there")


@pytest.mark.parametrize(
    "source", ["models/x", "https://host:8080/x.onnx", "s3://b/x#sha256=ab", "python:a:b:C", "a:b"]
)
def test_other_sources_name_no_class(source):
    assert python_class(source) is None
    assert folder_of(source) == source


def test_class_of_a_package_is_found_without_importing_it():
    assert absolute("python:examples.classes.lookups:Lookup", Path("/x")).startswith("python:")
    assert resolve("python:examples.make_llm:Sizes").name == "examples"
