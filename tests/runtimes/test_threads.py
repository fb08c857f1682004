"""Processors allowed by affinity and by the quotas of control groups, version 1 and 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimes.threads import allowed_cpus


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
    ("quota", "cpus"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("5000 100000", 1)],
)
def test_version_2_quota_is_rounded_up_and_never_zero(tmp_path, quota, cpus):
    assert count(tmp_path, cpu_dot_max=quota) == cpus


def test_tightest_group_above_ours_wins(tmp_path):
    quotas = {"pod__cpu_dot_max": "200000 100000", "pod__box__cpu_dot_max": "400000 100000"}
    assert count(tmp_path, "0::/pod/box\n", **quotas) == 2


def test_mount_itself_counts_when_the_named_group_is_not_shown(tmp_path):
    assert count(tmp_path, "0::/kubepods/x\n", cpu_dot_max="300000 100000") == 3


def test_affinity_below_the_quota_wins(tmp_path):
    assert count(tmp_path, affinity=1, cpu_dot_max="300000 100000") == 1


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


def test_rubbish_in_a_quota_file_is_no_limit(tmp_path):
    assert count(tmp_path, cpu_dot_max="many 100000") == 8


def test_this_process_has_at_least_one():
    assert allowed_cpus() >= 1
