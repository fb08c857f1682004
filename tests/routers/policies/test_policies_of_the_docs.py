"""The policies that docs/extending.md shows work as they stand there."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from textwrap import dedent

import pytest

from routers.api.actions import Dispatch
from routers.api.settings import PolicyNames
from routers.policies.registry import BATCHINGS, PLACEMENTS

PAGE = Path(__file__).parents[3] / "docs" / "extending.md"


def of_the_page(kind, known, tmp_path, monkeypatch):
    """The page's one file is there, and its one line stands in the registry."""
    section = PAGE.read_text().split(f"## A {kind} in one file and one line\n")[1]
    file, line = re.findall(r"```python\n(.*?)```", section.split("\n## ")[0], re.DOTALL)
    path = tmp_path / "of_the_page.py"
    path.write_text(dedent(file))
    spec = spec_from_file_location("of_the_page", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    ((name, policy),) = eval("{" + dedent(line) + "}", vars(module)).items()
    monkeypatch.setitem(known, name, policy)
    return name


@pytest.fixture
def batching(tmp_path, monkeypatch):
    name = of_the_page("batching policy", BATCHINGS, tmp_path, monkeypatch)
    return PolicyNames(batching=name)


@pytest.fixture
def placement(tmp_path, monkeypatch):
    return PolicyNames(placement=of_the_page("placement", PLACEMENTS, tmp_path, monkeypatch))


def sent(actions):
    return [len(each.rows) for each in actions if isinstance(each, Dispatch)]


@pytest.mark.interpreted
def test_it_waits_for_ten_rows(start, batching):
    core = start(policies=batching)
    core.replicas("a")
    assert [sent(core.arrive(n, 20, at=0.001 * n)) for n in range(9)] == [[]] * 9
    assert sent(core.arrive(9, 20)) == [10]


@pytest.mark.interpreted
def test_it_waits_for_20_ms(start, batching):
    core = start(policies=batching)
    core.replicas("a")
    assert not sent(core.arrive(1, 20))
    assert not sent(core.arrive(2, 20, at=0.015))
    assert core.timer == pytest.approx(0.02)
    assert sent(core.tick(0.02)) == [2]


@pytest.mark.interpreted
def test_it_asks_the_fastest_idle_replica_first(start, placement):
    core = start(policies=placement)
    core.replicas("a", "b")
    for n in range(20):  # `b` takes twice as long
        (lease,) = core.arrive(n, 20, at=float(n))
        core.close(lease, at=n + 0.5, service_s=0.02 if lease.replica_id == "b" else 0.01)
    used = [core.arrive(n, 20, at=float(n))[0].replica_id for n in (30, 31)]
    assert used == ["a", "b"]
