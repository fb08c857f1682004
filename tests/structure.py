"""The shape of the source: files, lines, imports, cycles, and the files that one request enters.

`python -m tests.structure` prints it; tests/test_architecture.py holds the parts that are rules.
"""

from __future__ import annotations

import ast
import asyncio
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "headrace",
    "deployments",
    "routers",
    "runtimes",
    "autoscaling",
    "loadtests",
    "yaml_document",
)
FLOORS = {
    "cli": 7, "tools": 6, "control": 5, "gateway": 4, "replica": 4, "process": 3, "preprocess": 2,
    "settings_files": 2, "contract": 1, "settings": 0,
}  # fmt: skip
"""Packages of deployments/: a package imports from lower floors alone."""
Graph = dict[str, frozenset[str]]


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports() -> Graph:
    """Module → modules of ours that it imports, type-checking and late imports included."""
    modules = {_module(path): path for path in sources()}
    return {
        name: frozenset(_imported(path, modules) & modules.keys() - {name})
        for name, path in modules.items()
    }


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _imported(path: Path, modules: dict[str, Path]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                found.add(inside if inside in modules else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


@cache
def closure(module: str) -> frozenset[str]:
    """All that is imported with it."""
    return frozenset(_reached(imports(), module))


def _reached(graph: Mapping[str, Collection[str]], start: str) -> set[str]:
    seen: set[str] = set()
    coming = [*graph[start]]
    while coming:
        each = coming.pop()
        if each not in seen:
            seen.add(each)
            coming += graph.get(each, ())
    return seen


def cycles() -> list[tuple[str, ...]]:
    """Groups of modules that import each other, directly or not."""
    inside = {name: closure(name) for name in imports()}
    found = {
        tuple(sorted(other for other in inside[name] if name in inside[other]))
        for name in inside
        if name in inside[name]
    }
    return sorted(found)


def package_cycles() -> list[tuple[str, ...]]:
    """Groups of packages, beside each other at any depth, that import each other, directly or
    not."""
    packages = {_module(path.parent / "__init__.py") for path in sources()}
    beside: dict[str, set[str]] = {}
    for name, targets in imports().items():
        for target in targets:
            one, other = _apart(name, target)
            if one in packages and other in packages:
                beside.setdefault(one, set()).add(other)
    inside = {name: _reached(beside, name) for name in beside}
    found = {
        tuple(sorted(other for other in inside[name] if name in inside.get(other, ())))
        for name in inside
        if name in inside[name]
    }
    return sorted(found)


def _apart(one: str, other: str) -> tuple[str, str]:
    """The two names as far as the first part in which they differ."""
    mine, theirs = one.split("."), other.split(".")
    depth = next(
        (at for at, both in enumerate(zip(mine, theirs, strict=False)) if both[0] != both[1]),
        min(len(mine), len(theirs)),
    )
    return ".".join(mine[: depth + 1]), ".".join(theirs[: depth + 1])


def wrong_arrows() -> list[str]:
    """Imports inside deployments/ that go up, or from a gateway to a replica and back."""
    found = []
    for name, targets in imports().items():
        for target in sorted(targets):
            low, high = _floor(name), _floor(target)
            beside = low == high == FLOORS["gateway"] and _package(name) != _package(target)
            if low is not None and high is not None and (low < high or beside):
                found.append(f"{name} -> {target}")
    return found


def _package(module: str) -> str:
    top, _, rest = module.partition(".")
    return rest.partition(".")[0] if top == "deployments" else ""


def _floor(module: str) -> int | None:
    return FLOORS.get(_package(module))


# ---- the files that a request enters ------------------------------------------------------


def entered(walk: Callable[[Callable[[bool], None]], Awaitable[None]]) -> list[str]:
    """Files of ours in which a function ran while `walk` had recording switched on."""
    files: set[str] = set()
    recording = False

    def seen(frame: Any, event: str, _: Any) -> None:
        if recording and event == "call":
            files.add(frame.f_code.co_filename)

    def switch(on: bool) -> None:
        nonlocal recording
        recording = on

    threading.setprofile(seen)
    sys.setprofile(seen)
    try:
        asyncio.run(walk(switch))  # type: ignore[arg-type]
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    ours = (Path(file) for file in files if file.startswith(str(ROOT)))
    relative = (path.relative_to(ROOT) for path in ours)
    return sorted(str(path) for path in relative if path.parts[0] in PACKAGES)


MODEL = {"runtime": "synthetic", "options": {"base_ms": 0}, "lengths": {"max": 32}}


async def infer(switch: Callable[[bool], None]) -> None:
    from in_process import Stand, ask

    row = {"name": "ids", "datatype": "INT64", "shape": [1, 3], "data": [[1, 2, 3]]}
    body = json.dumps({"inputs": [row]}).encode()
    head = [(b"content-length", b"%d" % len(body))]  # as clients send it
    with TemporaryDirectory() as folder:
        stand = Stand({"device": MODEL}, Path(folder))
        for on in (False, False, True):
            switch(on)
            answer = await ask(stand.app, "POST", "/v2/models/device/infer", head, body)
            await stand.settled()
        switch(False)
        assert answer.status == 200
        stand.close()


async def chat(switch: Callable[[bool], None]) -> None:
    from conftest import described
    from generating import CHAT, Client, add, streamed
    from in_process import Stand

    from deployments.contract.channel.stream_messages import StreamEnd

    with TemporaryDirectory() as folder:
        stand = Stand({"device": MODEL}, Path(folder))
        engines = add(stand, described)
        for on in (False, True):
            switch(on)
            client = Client(stand, CHAT, streamed())
            lease_id = (await engines.until_begun(len(engines.begun) + 1)).lease_id
            engines.say(lease_id, b"data: one\n\n", tokens=(10, 0, 1))
            await client.hears(1)
            engines.say(lease_id, b"", tokens=(10, 0, 2), end=StreamEnd.DONE)
            await client.end()
        switch(False)
        stand.close()


def main() -> None:
    sys.path.insert(0, str(ROOT / "tests" / "deployments"))
    lines = [len(path.read_text().splitlines()) for path in sources()]
    packages = {path.parent for path in sources()}
    print(f"files {len(lines)}, lines {sum(lines)}, median {median(lines):g} lines a file")
    print(f"packages {len(packages)}")
    print(f"import cycles {[len(each) for each in cycles()]} files; wrong arrows {wrong_arrows()}")
    print(f"package cycles {package_cycles()}")
    modules = closure("deployments.gateway.pipeline")
    print(f"closure of the pipeline: {outside_core(modules)} modules and the core's")
    for walk in (infer, chat):
        files = entered(walk)
        print(f"one {walk.__name__} request enters {outside_core(files)} files and the core's")
        if "-v" in sys.argv:
            print(*(f"  {file}" for file in files), sep="\n")


def outside_core(names: Collection[str]) -> int:
    return sum(not name.startswith("routers") for name in names)


if __name__ == "__main__":
    main()
