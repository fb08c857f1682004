"""How a class is found and imported, and what is seen of a faulty one without running it."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from headrace.declaration import DeclarationError, declared
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
    with pytest.raises(DeclarationError, match=f"no module own in {folder}; it has no .py file"):
        load_class(folder, "own", "Own")


def test_modules_that_there_are_are_listed(folder):
    (folder / "pkg").mkdir()
    for name in ("pkg/__init__.py", "pkg/aa.py", "top.py", "notes.txt"):
        (folder / name).touch()
    assert complaint(folder, "bb", "Own", False) == (
        f"there is no module bb in {folder}; it has pkg, top"
    )
    assert complaint(folder, "pkg.bb", "Own", False) == (
        f"there is no module pkg.bb in {folder}; it has pkg.aa"
    )
    assert "is no folder; name the folder that bb.py lies in" in (
        complaint(folder / "top.py", "bb", "Own", False) or ""
    )


TAKEN = [
    ("def load(self)", "load is called with the settings; it must be load(self, settings)"),
    ("def load(self, settings, more)", "must be load(self, settings)"),
    ("def load(self, settings, *, more)", "must be load(self, settings)"),
    ("def predict(self)", "predict is called with the batch; it must be predict(self, batch)"),
    ("async def predict()", "must be predict(self, batch)"),
    ("def warm(self, batch)", "warm is called with nothing; it must be warm(self)"),
    ("def example(self)", "example is called with the length; it must be example(self, length)"),
    ("def load(self, *settings)", None),
    ("def load(mine, given, more=3, *, kind=4, **named)", None),
    ("@staticmethod\n    def predict(batch)", None),
    ("@classmethod\n    def load(cls, settings)", None),
    ("def own(self, a, b, c)", None),
]


@pytest.mark.parametrize(("method", "said"), TAKEN)
def test_method_that_cannot_take_what_it_is_given_is_named(folder, method, said):
    """In the file before a start, and of the loaded class, whose base may have the method."""
    code = GOOD + f"    {method}: ...\n"
    found = complaint(written(folder, code), "own", "Own", False)
    own = load_class(folder, "own", "Own")
    if said is None:
        assert found is None
        declared(own)
        return
    assert said in (found or "")
    assert "own.py:" in (found or "")
    with pytest.raises(DeclarationError) as refused:
        declared(type("Below", (own,), {}))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("class Own\n", r"own\.py:1 is no Python"),
        ("import no_such_package\n" + GOOD, r"own\.py:1 imports no_such_package, which is not"),
        ("class Else: ...\n", "has no class Own; it has Else"),
        (GOOD.replace("def predict", "def predicts"), "Own lacks the method predict"),
        (GOOD.replace("outputs =", "output ="), "Own lacks the class attribute outputs"),
        (GOOD.replace('{"x": "FP32[1]"}', '{"x": "FP32[1]", "x": "INT64"}'), "declares 'x' twice"),
        (
            GOOD.replace('"FP32[1]"', '"float32[1]"', 1),
            r"own\.py:3: 'Own\.inputs: x' is",
        ),
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
        "def made(): ...\nOther, Own = made()\n",
        "Own: type = object\n",
        "def __getattr__(name): ...\n",
        "class Own:\n    inputs, outputs = {'x': 'FP32'}, {'y': 'FP32'}\n"
        "    def load(self, settings): ...\n    def predict(self, batch): ...\n",
        "class Own: ...\nOwn.predict = print\n",
        "class Own:\n    if True:\n        inputs = outputs = {}\n",
        GOOD + "    def warm(self, batch): ...\n    warm = print\n",
        GOOD.replace("class Own:", "class Own(Base):") + "    def warm(self, batch): ...\n",
        GOOD + "    def warm(self, batch): ...\nsetattr(Own, 'warm', print)\n",
        GOOD + "    def warm(self, batch): ...\nOwn = print(3)\n",
    ],
)
def test_what_only_running_can_tell_passes(folder, code):
    assert complaint(written(folder, code), "own", "Own", "somewhere" in code) is None


def test_what_a_wrapper_takes_counts_and_not_what_it_wraps(folder):
    code = (
        "import functools\ndef given(method):\n    @functools.wraps(method)\n"
        "    def inner(self, batch):\n        return method(self, batch, 3)\n    return inner\n"
    )
    code += GOOD + "    def predict(self, batch, more): return more\n    predict = given(predict)\n"
    assert complaint(written(folder, code), "own", "Own", False) is None
    own = load_class(folder, "own", "Own")
    declared(own)
    assert own().predict(None) == 3


def test_packages_of_a_model_are_not_looked_for_here(folder):
    code = "import no_such_package\n" + GOOD
    assert complaint(written(folder, code), "own", "Own", True) is None


def test_module_by_its_name_is_found_without_importing_its_package():
    assert complaint(None, "no_such_package.own", "Own", False) == (
        "there is no module no_such_package.own; install its package, or name the folder it lies in"
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


def test_exit_in_a_coroutine_is_the_callers_and_the_loop_runs_on():
    call = Caller()

    async def exits():
        raise SystemExit(3)

    async def answers():
        return 4

    with pytest.raises(SystemExit):
        call(exits)
    assert call(answers) == 4
    call.close()


def test_new_files_of_the_same_folder_are_imported_anew(folder):
    written(folder, GOOD + "    name = 'old'\n")
    assert load_class(folder, "own", "Own").name == "old"
    written(folder, GOOD + "    name = 'anew'\n")
    assert load_class(folder, "own", "Own").name == "anew"


def test_environment_in_the_folder_of_a_class_stays_imported(folder):
    installed = folder / "venv/lib/site-packages"
    installed.mkdir(parents=True)
    (installed / "installed_beside.py").write_text("")
    sys.path.append(str(installed))
    load_class(written(folder, "import installed_beside\n" + GOOD), "own", "Own")
    kept = sys.modules["installed_beside"]
    (folder / "other").mkdir()
    load_class(written(folder / "other", GOOD), "own", "Own")
    assert sys.modules["installed_beside"] is kept


def test_module_that_python_has_already_is_not_taken_for_the_class(folder):
    with pytest.raises(DeclarationError, match="json is a module of Python's"):
        load_class(written(folder, GOOD, "json.py"), "json", "Own")
