"""A runtime that an installed package brings (entry points of the group `headrace.runtimes`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path

import pytest

from runtimes import catalog
from runtimes.errors import LoadError
from runtimes.synthetic.runtime import SyntheticOptions, SyntheticRuntime
from runtimes.types import RuntimeSettings


@pytest.fixture
def brought(monkeypatch):
    """Makes `name` an entry point with this value."""

    def bring(value, name="mine", **members):
        module = types.ModuleType("brought_runtime")
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, "brought_runtime", module)
        point = metadata.EntryPoint(name, value, catalog.GROUP)
        monkeypatch.setattr(metadata, "entry_points", lambda group: [point])

    return bring


ENTRY = catalog.BackendEntry("brought_runtime", "Mine", "", ("fp32",))


def test_it_is_known_checked_and_made(brought, tmp_path):
    brought(
        "brought_runtime:ENTRY", ENTRY=ENTRY, MineRuntime=SyntheticRuntime,
        MineOptions=SyntheticOptions,
    )  # fmt: skip
    assert catalog.names()[-1] == "mine"
    assert "mine" not in catalog.names(catalog.GENERATE)
    with pytest.raises(LoadError, match="unknown option 'bas_ms', did you mean 'base_ms'"):
        catalog.check("mine", {"bas_ms": 1}, "fp32")
    made = catalog.create(RuntimeSettings("m", "mine", None, cache_dir=tmp_path))
    assert isinstance(made, SyntheticRuntime)
    (tmp_path / "weights").write_text("1")
    one = catalog.digest("mine", tmp_path)
    (tmp_path / "weights").write_text("2")
    assert catalog.digest("mine", tmp_path) != one


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("brought_runtime:ENTRY", "is no runtimes.catalog.BackendEntry"),
        ("brought_runtime:ABSENT", "cannot be imported: AttributeError"),
        ("no_such_module:ENTRY", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_one_that_cannot_be_had_is_said(brought, value, said):
    brought(value, ENTRY="no entry")
    with pytest.raises(LoadError, match=said):
        catalog.check("mine", {}, "fp32")


def test_names_of_headraces_own_are_not_taken_over(brought):
    brought("brought_runtime:ENTRY", name="torch", ENTRY=ENTRY)
    assert catalog.entry_of("torch") is catalog.ENTRIES["torch"]
    assert catalog.names().count("torch") == 1


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Runs Python where the package of `brought/` is installed."""
    there, built = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("built") / "wheel"
    shutil.copytree(Path(__file__).parent / "brought", built)
    pip = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", there]
    path = os.pathsep.join([str(there), str(Path(catalog.__file__).parents[1])])

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", *map(str, words)], cwd=built, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": path}, timeout=120, check=False,
        )  # fmt: skip

    done = run(*pip, built)
    assert done.returncode == 0, done.stderr
    return run


def test_an_installed_package_passes_the_suite_and_the_settings_check(installed, tmp_path):
    suite = installed("pytest", "-q", "-p", "no:cacheprovider", "conforms.py")
    assert suite.returncode == 0, suite.stdout
    file = tmp_path / "wheel.yaml"
    for weight, code, said in ((2, 0, ""), (-2, 2, "option 'weight' is -2.0, it must be above 0")):
        options = f"{{weight: {weight}}}"
        file.write_text(f"models: {{w: {{runtime: waterwheel, source: ., options: {options}}}}}")
        checked = installed("deployments.cli", "check", file)
        assert (checked.returncode, said in checked.stderr) == (code, True), checked.stderr
