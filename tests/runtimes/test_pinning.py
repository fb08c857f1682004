"""Which processors a replica keeps to: its own cores, the emptiest node, and what is free again."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from runtimes.errors import LoadError
from runtimes.pinning import ProcessorClaim, claim, listed, numa_nodes


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Eight processors, of which six are this process's."""
    mine = {0, 1, 2, 4, 5, 6}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(mine))
    return mine


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    for node, cpus in enumerate(("0-3", "4-7", "8-9")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cpus}\n")
    return tmp_path


def test_lists_of_the_kernel_are_read():
    assert list(listed("0-3,8,10-11\n")) == [0, 1, 2, 3, 8, 10, 11]
    assert list(listed("\n")) == []


def test_nodes_hold_only_what_is_allowed(nodes, allowed):
    assert numa_nodes(allowed, nodes) == {0: (0, 1, 2), 1: (4, 5, 6)}


def test_system_that_tells_of_no_nodes_has_one(tmp_path, allowed):
    assert numa_nodes(allowed, tmp_path) == {0: (0, 1, 2, 4, 5, 6)}


def test_off_claims_nothing(tmp_path, nodes):
    assert claim("off", 2, tmp_path / "pins", nodes) is None


def test_two_replicas_never_take_the_same_core(tmp_path, nodes, allowed):
    held = [claim("cores", 2, tmp_path / "pins", nodes) for _ in range(3)]
    taken = [cpu for own in held for cpu in own.cpus]
    assert sorted(taken) == sorted(allowed)


def test_cores_come_from_one_node_where_it_has_enough(tmp_path, nodes, allowed):
    first = claim("cores", 2, tmp_path / "pins", nodes)
    second = claim("cores", 3, tmp_path / "pins", nodes)
    assert first.cpus == {0, 1}
    assert second.cpus == {4, 5, 6}


def test_too_few_free_cores_are_said_and_nothing_is_kept(tmp_path, nodes, allowed):
    first = claim("cores", 5, tmp_path / "pins", nodes)
    with pytest.raises(LoadError, match="of 6 processors 1 are free for 2 threads"):
        claim("cores", 2, tmp_path / "pins", nodes)
    assert len(claim("cores", 1, tmp_path / "pins", nodes).cpus - first.cpus) == 1


def test_released_cores_are_free_again(tmp_path, nodes, allowed):
    for _ in range(3):
        own = claim("cores", 6, tmp_path / "pins", nodes)
        own.release()
        own.release()


def test_replicas_spread_over_the_nodes(tmp_path, nodes, allowed):
    held: list[ProcessorClaim] = [claim("numa", 2, tmp_path / "pins", nodes) for _ in range(4)]
    assert [min(own.cpus) for own in held] == [0, 4, 0, 4]
    held[1].release()
    assert claim("numa", 2, tmp_path / "pins", nodes).cpus == {4, 5, 6}


def test_only_the_thread_that_binds_itself_is_bound(tmp_path):
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system binds no threads")
    before, own = os.sched_getaffinity(0), claim("cores", 1, tmp_path)
    seen: dict[str, set[int]] = {}

    def work() -> None:
        with own.bound():
            seen["bound"] = os.sched_getaffinity(0)
        seen["after"] = os.sched_getaffinity(0)
        own.bind()
        seen["for good"] = os.sched_getaffinity(0)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    own.release()
    assert seen == {"bound": own.cpus, "after": before, "for good": own.cpus}
    assert os.sched_getaffinity(0) == before
