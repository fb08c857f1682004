"""Keys in files that people wrote: only the key changes, and what cannot be understood is left."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from deployments.settings.plain import SettingsErrors
from deployments.tools.keys import CannotEdit, add_key, remove_key, tenants_of

ONE, TWO, THREE = ("sha256:" + digit * 64 for digit in "123")
BLOCK = f"""# who may come
tenants:
  acme:            # our own
    weight: 3
    keys:
      # the first
      - {ONE}
      - id: two    # the second
        hash: {TWO}

  other: {{weight: 1}}
gateway: {{port: 8000, priorities: [gold, silver]}}
"""


def file(folder: Path, text: str) -> Path:
    path = folder / "tenants.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def hashes(path: Path) -> set[str]:
    return {key.hash for _, _, key in tenants_of(path).all_keys()}


def lines_of_difference(before: str, after: str) -> tuple[list[str], list[str]]:
    old, new = before.splitlines(), after.splitlines()
    return [line for line in old if line not in new], [line for line in new if line not in old]


def test_a_key_is_added_as_one_line_of_a_block(tmp_path: Path) -> None:
    path = file(tmp_path, BLOCK)
    add_key(path, "acme", {"id": "three", "hash": THREE, "expires": "2027-01-31T00:00:00Z"})
    gone, came = lines_of_difference(BLOCK, path.read_text())
    assert gone == []
    assert came == [f"      - {{id: three, hash: '{THREE}', expires: '2027-01-31T00:00:00Z'}}"]
    assert hashes(path) == {ONE, TWO, THREE}


@pytest.mark.parametrize(("name", "left"), [("1" * 12, {TWO}), (TWO, {ONE}), ("two", {ONE})])
def test_a_key_is_taken_out_with_its_own_lines_alone(
    tmp_path: Path, name: str, left: set[str]
) -> None:
    path = file(tmp_path, BLOCK)
    assert remove_key(path, name) == "tenant acme"
    gone, came = lines_of_difference(BLOCK, path.read_text())
    assert came == []
    assert 1 <= len(gone) <= 2
    assert hashes(path) == left
    assert "# the first" in path.read_text()


def test_the_last_key_taken_out_leaves_an_empty_list_and_not_an_open_door(tmp_path: Path) -> None:
    path = file(tmp_path, BLOCK)
    for name in ("1" * 12, "two"):
        remove_key(path, name)
    assert tenants_of(path).tenants["acme"].keys == ()


@pytest.mark.parametrize(
    "text",
    [
        "tenants: {acme: {keys: []}}\n",
        f"tenants: {{acme: {{keys: ['{ONE}']}}}}\n",
        f"tenants: {{acme: {{keys: ['{ONE}', {{id: two, hash: '{TWO}'}}]}}}}\n",
        "tenants: {acme: {weight: 2}}\n",
        "tenants: {acme: {}}\n",
        "tenants:\n  acme:\n  other: {}\n",
        "tenants:\n  acme:\n",
        "tenants:\n  acme:\n    weight: 2  # much\n  other: {}\n",
        f"tenants:\n  acme:\n    keys:\n    - {ONE}",
        f"tenants:\n  acme:\n    keys: ['{ONE}']   # one\n    weight: 2\n",
        f'operators: {{keys: ["{ONE}"]}}\ntenants: {{acme: {{}}}}\n',
    ],
)
def test_what_is_added_can_be_taken_out_again(tmp_path: Path, text: str) -> None:
    path = file(tmp_path, text)
    before = hashes(path)
    for tenant in ("acme", None):
        add_key(path, tenant, {"id": "three", "hash": THREE})
        assert hashes(path) == before | {THREE}
        assert remove_key(path, "three") == ("tenant acme" if tenant else "operators")
        assert hashes(path) == before


def refused(path: Path, *what: Any) -> str:
    before = path.read_text()
    with pytest.raises((CannotEdit, SettingsErrors)) as told:
        add_key(path, *what)
    assert path.read_text() == before
    return str(told.value)


def test_what_cannot_be_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = file(tmp_path, BLOCK)
    assert "has no tenant nobody; there are: acme, other" in refused(path, "nobody", {"hash": ONE})
    assert "already a key of tenant acme" in refused(path, "other", {"hash": ONE})
    path.write_text("tenants: {acme: {weight: -1}}\n")
    assert "tenants.acme.weight" in refused(path, "acme", {"hash": ONE})
    with pytest.raises(CannotEdit, match="no key is called"):
        remove_key(file(tmp_path, BLOCK), "gone")
    with pytest.raises(CannotEdit, match="cannot be read"):
        tenants_of(tmp_path / "none.yaml")


def test_what_two_tenants_share_is_not_changed_for_both(tmp_path: Path) -> None:
    path = file(tmp_path, "tenants:\n  a: &same {weight: 2}\n  b: *same\n")
    assert "cannot be changed so" in refused(path, "a", {"hash": ONE})
    assert hashes(path) == set()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_and_odd_characters_are_left_as_they_are(tmp_path: Path, end: str) -> None:
    path = tmp_path / "tenants.yaml"
    text = BLOCK.replace("# the first", "# fünf ☃").replace("\n", end)
    path.write_bytes(text.encode())
    add_key(path, "acme", {"hash": THREE})
    remove_key(path, THREE)
    assert path.read_bytes().decode().replace(end, "\n") == text.replace(end, "\n")
    remove_key(path, "two")
    assert hashes(path) == {ONE}


def test_the_file_keeps_its_rights_and_a_link_stays_a_link(tmp_path: Path) -> None:
    path = file(tmp_path, "tenants: {acme: {}}\n")
    path.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    add_key(link, "acme", {"hash": ONE})
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert hashes(path) == {ONE}
