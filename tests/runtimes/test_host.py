"""Processors: how many are allowed, and which ones a replica keeps to."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from runtimes.errors import LoadError
from runtimes.host import ProcessorClaim, allowed_cpus, claim, listed, numa_nodes


def count(tmp_path: Path, own: str = "", affinity: int = 8, **quotas: str) -> int:
    """`quotas` are files below the mount, `__` for `/` and `_dot_` for `.` in their names."""
    root = tmp_path / "cgroup"
    for name, text in quotas.items():
        file = root / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "own").write_text(own)
    return allowed_cpus(root, tmp_path / "own", affinity)


def test_affinity_counts_without_control_groups(tmp_path):
    assert allowed_cpus(tmp_path / "none", tmp_path / "none", 3) == 3


@pytest.mark.parametrize(
    ("own", "affinity", "quotas", "cpus"),
    [
        ("", 8, {"": "max 100000"}, 8),
        ("", 8, {"": "200000 100000"}, 2),
        ("", 8, {"": "150000 100000"}, 2),  # rounded up
        ("", 8, {"": "5000 100000"}, 1),
        ("", 8, {"": "many 100000"}, 8),
        ("", 1, {"": "300000 100000"}, 1),
        ("0::/pod/box\n", 8, {"pod__": "200000 100000", "pod__box__": "400000 100000"}, 2),
        ("0::/kubepods/x\n", 8, {"": "300000 100000"}, 3),  # a group that the mount does not show
    ],
)
def test_the_least_of_affinity_and_version_2_quotas_counts(tmp_path, own, affinity, quotas, cpus):
    named = {f"{group}cpu_dot_max": quota for group, quota in quotas.items()}
    assert count(tmp_path, own, affinity, **named) == cpus


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_version_1_quota_counts(tmp_path, mount):
    quotas = {
        f"{mount}__box__cpu_dot_cfs_quota_us": "250000",
        f"{mount}__box__cpu_dot_cfs_period_us": "100000",
    }
    assert count(tmp_path, "7:memory:/other\n4:cpu,cpuacct:/box\n", **quotas) == 3


def test_version_1_without_a_limit_leaves_the_affinity(tmp_path):
    quotas = {"cpu__cpu_dot_cfs_quota_us": "-1", "cpu__cpu_dot_cfs_period_us": "100000"}
    assert count(tmp_path, **quotas) == 8


def test_this_process_has_at_least_one():
    assert allowed_cpus() >= 1


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
