"""The batching policy that docs/extending.md shows works as it stands there."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from textwrap import dedent

import pytest

from routers.api.actions import Dispatch
from routers.api.settings import PolicyNames
from routers.policies.registry import BATCHINGS

PAGE = Path(__file__).parents[3] / "docs" / "extending.md"
SECTION = "## A batching policy in one file and one line\n"


@pytest.fixture
def of_the_page(tmp_path, monkeypatch):
    """The page's one file is there, and its one line stands in the registry."""
    section = PAGE.read_text().split(SECTION)[1].split("\n## ")[0]
    file, line = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    path = tmp_path / "tens.py"
    path.write_text(dedent(file))
    spec = spec_from_file_location("tens", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    ((name, policy),) = eval("{" + dedent(line) + "}", vars(module)).items()
    monkeypatch.setitem(BATCHINGS, name, policy)
    return PolicyNames(batching=name)


def sent(actions):
    return [len(each.rows) for each in actions if isinstance(each, Dispatch)]


@pytest.mark.interpreted
def test_it_waits_for_ten_rows(start, of_the_page):
    core = start(policies=of_the_page)
    core.replicas("a")
    assert [sent(core.arrive(n, 20, at=0.001 * n)) for n in range(9)] == [[]] * 9
    assert sent(core.arrive(9, 20)) == [10]


@pytest.mark.interpreted
def test_it_waits_for_20_ms(start, of_the_page):
    core = start(policies=of_the_page)
    core.replicas("a")
    assert not sent(core.arrive(1, 20))
    assert not sent(core.arrive(2, 20, at=0.015))
    assert core.timer == pytest.approx(0.02)
    assert sent(core.tick(0.02)) == [2]
