"""Is a stored profile used for exactly what was measured, and for nothing else?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_profiles import IDENTITY, identity

from deployments.replica.known_costs import StoredProfile, identity_of, look_up, save
from runtimes.types import RuntimeSettings

PROFILE = StoredProfile(
    IDENTITY, "2026-11-21T12:00:00+00:00", ((1, 16, 0.001), (8, 16, 0.004)),
    (1e-3, 1e-4, 1e-6, 0.0), 8, (32, 512), (0.02, 0.1),
)  # fmt: skip


def test_what_was_stored_is_found_again(tmp_path: Path) -> None:
    path = save(PROFILE, tmp_path)
    assert look_up(IDENTITY, tmp_path).profile == PROFILE
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_nothing_stored_is_nothing_to_say(tmp_path: Path) -> None:
    assert look_up(IDENTITY, tmp_path) == look_up(IDENTITY, tmp_path / "gone")
    assert look_up(IDENTITY, tmp_path).problem == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"processor": "arm 1"}, "processor 'x86_64 chip 0123', not 'arm 1'"),
        ({"version": "2027"}, "version '2026.4', not '2027'"),
        ({"precision": "bf16"}, "precision 'fp32', not 'bf16'"),
        ({"threads": 1}, "threads 2, not 1"),
        ({"options": '{"a": 1}'}, "options '{}', not '{\"a\": 1}'"),
    ],
)
def test_one_of_something_else_is_not_used_and_what_differs_is_said(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    save(PROFILE, tmp_path)
    lookup = look_up(identity(**changes), tmp_path)
    assert lookup.profile is None
    assert lookup.problem == f"the stored profile is of {said}"


def test_another_artifact_says_nothing(tmp_path: Path) -> None:
    save(PROFILE, tmp_path)
    assert look_up(identity(artifact="b" * 64), tmp_path).problem == ""


def test_of_several_the_nearest_is_named(tmp_path: Path) -> None:
    save(PROFILE, tmp_path)
    other = StoredProfile(identity(threads=1, precision="bf16"), "t", ((1, 1, 1.0),), (1, 0, 0, 0))
    save(other, tmp_path)
    assert look_up(identity(threads=1), tmp_path).problem.count(" and of ") == 0


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2}, {"points": []}, {"points": [[1, 16, -1.0]]}, {"edges": [64, 32]},
        {"coefficients": [1]}, {"target_rows": "x"}, {"identity": {}},
    ],
)  # fmt: skip
def test_a_damaged_file_is_not_used(tmp_path: Path, change: dict[str, Any]) -> None:
    path = save(PROFILE, tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    lookup = look_up(IDENTITY, tmp_path)
    assert lookup.profile is None
    assert f"{path} cannot be used" in lookup.problem


@pytest.mark.parametrize("text", ["", "[", "null", "[]"])
def test_a_file_of_something_else_is_not_used(tmp_path: Path, text: str) -> None:
    path = save(PROFILE, tmp_path)
    path.write_text(text)
    assert "cannot be used" in look_up(IDENTITY, tmp_path).problem


def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("a file")
    with pytest.raises(OSError, match="profiles"):
        save(PROFILE, tmp_path)


def test_a_later_profile_replaces_the_earlier_one(tmp_path: Path) -> None:
    save(PROFILE, tmp_path)
    later = StoredProfile(IDENTITY, "later", ((1, 16, 0.002),), (2e-3, 0, 0, 0))
    save(later, tmp_path)
    assert look_up(IDENTITY, tmp_path).profile == later


def test_a_synthetic_device_is_known_by_its_options(tmp_path: Path) -> None:
    def of(**options: Any) -> Any:
        return identity_of(RuntimeSettings("m", "synthetic", None, tmp_path, options=options))

    assert of(base_ms=1) == of(base_ms=1)
    assert of(base_ms=1) != of(base_ms=2)
    assert of(a=1, b=2) == of(b=2, a=1)
