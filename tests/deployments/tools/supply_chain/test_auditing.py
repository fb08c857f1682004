"""What an audit says of locks that the registry no longer bears out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deployments.tools.supply_chain import auditing
from deployments.tools.supply_chain.lock_sets import SETS, Locked, parsed

TEXTS = {each.name: each.path.read_text() for each in SETS}
OTHER = "sha256:" + "0" * 64
FIRST = next(parsed(TEXTS["kube"]))


def with_first(package: Locked | None) -> dict[str, str]:
    """The locks as the registry would have them, the first package of one of them changed."""
    others = [each for each in parsed(TEXTS["kube"]) if each != FIRST]
    made = [*others, *([package] if package else ())]
    return TEXTS | {"kube": "".join(f"{each}\n" for each in made)}


def test_nothing_is_wrong_with_locks_that_are_made_the_same_again():
    assert auditing.of_registry(TEXTS, []) == []


def test_a_new_file_of_a_release_is_no_complaint():
    more = replace(FIRST, digests=(*FIRST.digests, OTHER))
    assert auditing.of_registry(with_first(more), []) == []


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (None, "is not needed any more"),
        (replace(FIRST, version="99"), "cannot be had any more, 99 can"),
        (replace(FIRST, digests=(OTHER,)), f"no file any more with {FIRST.digests[0]}"),
    ],
)  # fmt: skip
def test_what_the_registry_has_otherwise_is_named(now: Locked | None, said: str):
    (complaint,) = auditing.of_registry(with_first(now), [])
    assert complaint.startswith(f"kube.lock: {FIRST.name}=={FIRST.version}")
    assert said in complaint


def test_yanked_releases_are_named_once():
    warnings = ['warning: `one==1` is yanked (reason: "bad")', "warning: something else"]
    assert auditing.of_registry(TEXTS, warnings * 2) == [warnings[0]]


def test_packages_that_nobody_looked_up_do_not_count_as_sound():
    said = auditing.summary([], [], {(FIRST.name, FIRST.version)})
    assert "1 packages were NOT looked up" in said
    assert "NOT" not in auditing.summary([], [], set())
