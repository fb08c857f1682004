"""The layout's rules: directions, cycles, sizes, words, what is forbidden."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import structure
from structure import ROOT, sources, tree

MAX_LINES = 600
MAX_FUNCTION_LINES = 90
MAX_PARAMETERS = 6
MAX_DOCSTRING_LINES = 12
MAX_ENTERED = {"closure of the pipeline": 81, "one infer": 32, "one chat": 31}
"""Files outside routers/ that the pipeline's imports reach, and that a request enters."""
FORBIDDEN_NAMES = {"common", "utils", "helpers", "util", "helper", "misc"}


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_no_file_is_longer_than_its_bound():
    long = {str(p): n for p in sources() if (n := len(p.read_text().splitlines())) > MAX_LINES}
    assert not long


def test_no_function_is_longer_than_its_bound():
    long = {
        f"{path}:{node.lineno} {node.name}": length(node)
        for path in sources()
        for node in functions(path)
        if length(node) > MAX_FUNCTION_LINES
    }
    assert not long


def test_each_package_of_the_shell_imports_only_what_lies_below_it():
    assert structure.wrong_arrows() == []


def test_nothing_imports_itself_in_a_circle():
    assert structure.cycles() == []


def test_no_package_imports_one_that_imports_it():
    assert structure.package_cycles() == []


@pytest.mark.slow
def test_a_request_takes_no_longer_way_than_it_did():
    """`MAX_ENTERED` only falls. In a process of its own, since coverage uses the same hook."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.structure"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found = {what: int(re.search(f"{what}[^0-9]*([0-9]+)", told)[1]) for what in MAX_ENTERED}
    assert {what: n for what, n in found.items() if n > MAX_ENTERED[what]} == {}


def test_functions_take_few_parameters():
    many = []
    for path in sources():
        for node in functions(path):
            every = [*node.args.posonlyargs, *node.args.args]
            positional = [a.arg for a in every if a.arg not in ("self", "cls")]
            if len(positional) > MAX_PARAMETERS:
                many.append(f"{path}:{node.lineno} {node.name}")
    assert not many


def test_modules_say_what_they_are():
    silent = [str(p) for p in sources() if not ast.get_docstring(tree(p))]
    assert not silent


def test_no_docstring_is_longer_than_its_bound():
    tracked = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    product = [name for name in tracked if not name.startswith("tests/") and (ROOT / name).exists()]
    assert product
    long = {
        f"{name}: {getattr(node, 'name', 'module')}": lines
        for name in product
        for node in ast.walk(tree(ROOT / name))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := len((ast.get_docstring(node) or "").split("\n"))) > MAX_DOCSTRING_LINES
    }
    assert not long


def test_no_module_is_a_drawer_of_odds_and_ends():
    assert not [str(p) for p in sources() if p.stem in FORBIDDEN_NAMES]


@pytest.mark.parametrize("island", ["routers", "runtimes", "autoscaling"])
def test_islands_do_not_read_the_environment(island):
    readers = [
        str(path)
        for path in (ROOT / island).rglob("*.py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    ]
    assert not readers


def test_settings_and_contract_open_nothing():
    opening = {"open", "read_text", "read_bytes", "exists", "is_file", "is_dir", "environ", "Popen"}
    openers = [
        str(path)
        for package in ("settings", "contract")
        for path in (ROOT / "deployments" / package).rglob("*.py")
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.Attribute) and node.attr in opening)
        or (isinstance(node, ast.Name) and node.id in opening)
    ]
    # The policies that come with Headrace, which are part of the package.
    assert openers == [str(ROOT / "deployments/settings/scaling.py")]


def test_only_the_shell_imports_ray():
    offenders = [
        str(path)
        for path in sources()
        if "deployments" not in path.parts and "peers" not in path.parts
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any(name.split(".")[0] == "ray" for name in _imported(node))
    ]
    assert not offenders


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names]


RECORDS = (
    "state/replica_state", "state/rows", "state/flows",
    "policies/placement", "policies/admission/types",
)  # fmt: skip
"""Modules of routers/ with the records whose numbers policies are shown, and with their views."""


def assigned(path: Path) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node


def test_policies_assign_no_field_of_a_record():
    paths = [ROOT / "routers" / f"{name}.py" for name in RECORDS]
    classes = [node for path in paths for node in tree(path).body if isinstance(node, ast.ClassDef)]
    fields = {node.attr for path in paths for node in assigned(path)} | {
        each.target.id
        for node in classes
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    assert {"hedge_due", "reasons", "avoid", "late", "start", "live", "slowdown"} <= fields
    writers = {
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path in (ROOT / "routers" / "policies").rglob("*.py")
        for node in assigned(path)
        if node.attr in fields and ast.unparse(node.value) != "self"
    }
    assert not writers


MAX_FIELDS = 20


def test_no_record_of_the_core_has_more_fields_of_its_own_than_a_reader_keeps_in_mind():
    many = {}
    for package in ("state", "shared", "batch", "stream"):
        for path in (ROOT / "routers" / package).rglob("*.py"):
            for node in tree(path).body:
                if isinstance(node, ast.ClassDef) and (n := len(own_fields(node))) > MAX_FIELDS:
                    many[f"{path.name} {node.name}"] = n
    assert not many


def own_fields(node: ast.ClassDef) -> set[str]:
    """Those that its body declares, and those that its constructor assigns."""
    declared = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    made = {
        each.attr
        for function in node.body
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
        for each in ast.walk(function)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
    }
    return declared | made


FOLDERS = "deployments|routers|runtimes|loadtests|tests|autoscaling|yaml_document"
NAMED = re.compile(rf"\b((?:{FOLDERS})/[\w/]+\.(?:py|yaml))\b")


def test_files_that_the_documentation_names_exist():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    gone = [
        f"{page.name}: {name}"
        for page in pages
        for name in NAMED.findall(page.read_text())
        if not (ROOT / name).exists()
    ]
    assert not gone


NAMED_TESTS = re.compile(r"\b(tests/[\w/]+\.py)::(\w+)")


def test_tests_that_the_documentation_names_exist():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    named = {pair for page in pages for pair in NAMED_TESTS.findall(page.read_text())}
    assert named
    gone = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"^\s*(?:async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
    ]
    assert not gone


def test_every_package_is_installed_put_into_images_and_compiled():
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packages >= {"headrace", "routers"}
    (line,) = re.findall(r"^PACKAGES := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(line.split()) == packages
    installed, image = ((ROOT / name).read_text() for name in ("pyproject.toml", ".dockerignore"))
    assert not [name for name in packages if f'"{name}*"' not in installed]
    assert not [name for name in packages if f"!{name}" not in image.splitlines()]
