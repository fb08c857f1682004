"""Every command that a page, a chart, an example or a message names exists and has the options
named with it; every help page ends with an example, which is valid."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from deployments.cli import main
from loadtests.command import main as load

ROOT = Path(__file__).parents[2]
KINDS = {".md", ".py", ".yaml", ".txt", ".toml", ".tpl", ""}
PLACES = ("README.md", "Makefile", "CONTRIBUTING.md", "pyproject.toml", "docs", "helm", "k8s",
          "examples", "deployments", "loadtests", "runtimes", "tests/integration", "tests/cluster",
          "tests/kube", "tests/image")  # fmt: skip
# In backticks, or where a shell is shown.
NAMED = re.compile(r"(?:`|^\$ |^|\$\(|&& )headrace ([a-z][^`\n)#&>\"]*)", re.MULTILINE)


def texts() -> Iterator[tuple[Path, str]]:
    for place in PLACES:
        found = ROOT / place
        for path in [found] if found.is_file() else sorted(found.rglob("*")):
            if path.is_file() and path.suffix in KINDS:
                yield path.relative_to(ROOT), path.read_text(encoding="utf-8")


def named() -> dict[str, list[str]]:
    """The commands, and where they are named."""
    found: dict[str, list[str]] = {}
    for path, text in texts():
        for each in NAMED.findall(text):
            found.setdefault(each.strip(), []).append(str(path))
    return found


def commands(
    group: click.Group, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if name == "load":
            yield from commands(load, (*path, "load"))
        elif isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


ALL = dict(commands(main, ()))


def wrong(line: str) -> str | None:
    """What is wrong with a command as written; words in capitals and with dots stand for others."""
    words = line.split()
    path = next((tuple(words[:n]) for n in (2, 1) if tuple(words[:n]) in ALL), None)
    if path is None:
        groups = {each[0] for each in ALL if len(each) > 1}
        rest = words[1] if len(words) > 1 else ""
        is_group = words[0] in groups and not re.match(r"[a-z]+$", rest.split("|")[0].rstrip(",."))
        return None if is_group or words[0] == "load" else f"no command {' '.join(words[:2])}"
    options = {o for p in ALL[path].params if not getattr(p, "hidden", False) for o in p.opts}
    given = [w.split("=")[0].strip("[].,;)'\"") for w in words if w.startswith(("--", "[--"))]
    unknown = [each for each in given if each not in options | {"--help", "--"}]
    return f"{' '.join(path)} has no {unknown}" if unknown else None


def test_commands_that_are_named_exist() -> None:
    found = named()
    assert len(found) > 100
    mistakes = [
        f"{why}: {line} ({', '.join(at)})" for line, at in found.items() if (why := wrong(line))
    ]
    assert mistakes == []


@pytest.mark.parametrize(
    "line", ["deploy FILE", "rollback m", "rollout forwards", "verify m --file x",
             "apply x --url u"]
)  # fmt: skip
def test_commands_that_do_not_exist_are_found(line: str) -> None:
    assert wrong(line)


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_a_help_page_ends_with_an_example_that_is_valid(path: tuple[str, ...]) -> None:
    begin = f"Example: headrace {' '.join(path)}"
    epilog = ALL[path].epilog or ""
    # `env` is shown inside an `eval`.
    assert epilog.startswith(begin) or f"$(headrace {' '.join(path)}" in epilog
    assert len(epilog) <= 96
    written = epilog.partition(" ".join(path))[2]
    words = shlex.split(re.split(r"[)>]", written)[0])
    ALL[path].make_context(" ".join(path), words)
