"""How a class is found and imported, and what is seen of a faulty one without running it."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from headrace.declaration import DeclarationError
from headrace.loading import Caller, complaint, load_class

GOOD = """
class Own:
    inputs = {"x": "FP32[1]"}
    outputs = {"y": "FP32[1]"}

    def load(self, settings): ...
    def predict(self, batch): ...
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of modules, with what they import forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def written(folder, code, name="own.py"):
    (folder / name).write_text(code)
    return folder


def test_class_of_a_folder_is_imported_with_what_lies_beside_it(folder):
    written(folder, "from helper import Own\n")
    written(folder, GOOD, "helper.py")
    assert load_class(folder, "own", "Own").__name__ == "Own"
    assert complaint(folder, "own", "Own", False) is None


def test_module_of_the_same_name_in_another_folder_is_another(folder):
    for name in ("one", "two"):
        (folder / name).mkdir()
        written(folder / name, f"import beside\n{GOOD}    name = beside.NAME\n")
        written(folder / name, f"NAME = {name!r}\n", "beside.py")
    assert load_class(folder / "one", "own", "Own").name == "one"
    assert load_class(folder / "two", "own", "Own").name == "two"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import no_such_package\n", "imports no_such_package, which is not installed.*own.py:1"),
        ("\n1 / 0\n", "ZeroDivisionError: division by zero .*own.py:2"),
        ("raise SystemExit(3)\n", "cannot be imported: SystemExit: 3"),
        ("Other = 1\nclass Else: ...\n", "has no class Own; it has Else"),
    ],
)
def test_import_that_fails_says_where(folder, code, said):
    with pytest.raises(DeclarationError, match=said):
        load_class(written(folder, code), "own", "Own")


def test_module_that_is_not_there_is_named_with_its_folder(folder):
    with pytest.raises(DeclarationError, match=f"no module own in {folder}"):
        load_class(folder, "own", "Own")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("class Own\n", r"own\.py:1 is no Python"),
        ("import no_such_package\n" + GOOD, r"own\.py:1 imports no_such_package, which is not"),
        ("class Else: ...\n", "has no class Own; it has Else"),
        (GOOD.replace("def predict", "def predicts"), "Own lacks the method predict"),
        (GOOD.replace("outputs =", "output ="), "Own lacks the class attribute outputs"),
        (GOOD.replace('{"x": "FP32[1]"}', '{"x": "FP32[1]", "x": "INT64"}'), "declares 'x' twice"),
    ],
)
def test_fault_is_seen_without_running_the_class(folder, code, said):
    import re

    marker = folder / "ran"
    code = code if "class Own\n" in code else f"{code}\nopen({str(marker)!r}, 'w')\n"
    found = complaint(written(folder, code), "own", "Own", False)
    assert found is not None
    assert re.search(said, found)
    assert not marker.exists()


@pytest.mark.parametrize(
    "code",
    [
        GOOD,
        "from somewhere import Own\n",
        "try:\n    import no_such_package\nexcept ImportError:\n    pass\n" + GOOD,
        "class Base: ...\nclass Own(Base): ...\n",
        "def made(): ...\nOwn = made()\n",
    ],
)
def test_what_only_running_can_tell_passes(folder, code):
    assert complaint(written(folder, code), "own", "Own", "somewhere" in code) is None


def test_packages_of_a_model_are_not_looked_for_here(folder):
    code = "import no_such_package\n" + GOOD
    assert complaint(written(folder, code), "own", "Own", True) is None


def test_module_by_its_name_is_found_without_importing_its_package():
    assert complaint(None, "no_such_package.own", "Own", False) == (
        "there is no module no_such_package.own"
    )
    assert complaint(None, "no_such_package.own", "Own", True) is None
    assert complaint(None, "headrace.batch", "Answer", False) is not None  # no class to serve


def test_coroutines_share_a_loop_that_runs_on_between_calls():
    call, loops, running, ended = Caller(), [], [], threading.Event()

    async def later():
        await asyncio.sleep(0.01)
        ended.set()

    async def method(value):
        loops.append(asyncio.get_running_loop())
        running.append(asyncio.create_task(later()))
        return value * 2

    assert call(method, 2) == 4
    assert ended.wait(10)
    call(asyncio.wait, running)
    assert call(method, 3) == 6
    assert loops[0] is loops[1]
    assert call(lambda value: value, 5) == 5
    call(asyncio.wait, running)
    call.close()
    call.close()
