"""Tenants that are replaced while a gateway runs: by a file or folder, and by what is published."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from deployments.contract.errors import Unauthorized
from deployments.gateway.tenancy.live_tenants import (
    LiveTenants,
    OperatorsSwitch,
    PublishedTenants,
    TenantsPath,
)
from deployments.settings.plain import SettingsErrors


def replace(path: Path, text: str) -> None:
    """A new file under the old name, as editors and `apply` do it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "tenants.yaml"
    made.write_text("tenants: {a: {}}\n")
    return made


def test_replaced_file_is_read_again_and_only_then(path: Path) -> None:
    watched = LiveTenants(TenantsPath(path))
    first = watched.current
    assert first.names == ("a",)
    assert not watched.refresh()
    assert watched.current is first
    replace(path, "tenants: {b: {}}\n")
    assert watched.refresh()
    assert watched.current.names == ("b",)


def test_file_written_in_place_is_read_again(path: Path) -> None:
    watched = LiveTenants(TenantsPath(path))
    path.write_text("tenants: {longer: {}}\n")
    assert watched.refresh()
    assert watched.current.names == ("longer",)


def test_same_size_and_another_time_is_another_file(path: Path) -> None:
    watched = LiveTenants(TenantsPath(path))
    path.write_text("tenants: {b: {}}\n")
    os.utime(path, ns=(1, 1))
    assert watched.refresh()
    assert watched.current.names == ("b",)


def test_switched_link_is_another_file(tmp_path: Path) -> None:
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "tenants.yaml").write_text(f"tenants: {{{version}: {{}}}}\n")
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "tenants.yaml").symlink_to("..data/tenants.yaml")
    watched = LiveTenants(TenantsPath(tmp_path / "tenants.yaml"))
    (tmp_path / "..new").symlink_to("two")
    os.replace(tmp_path / "..new", tmp_path / "..data")
    assert watched.refresh()
    assert watched.current.names == ("two",)


@pytest.mark.parametrize("text", ["", "tenants: {a: {weight: -1}}\n", "tenants:\n", "x: [\n"])
def test_invalid_file_keeps_the_last_good_one_and_says_so(path: Path, text: str) -> None:
    watched = LiveTenants(TenantsPath(path))
    replace(path, text)
    assert not watched.refresh()
    assert watched.current.names == ("a",)
    assert watched.problem
    assert str(path) in watched.problem
    replace(path, "tenants: {c: {}}\n")
    assert watched.refresh()
    assert watched.problem is None
    assert watched.current.names == ("c",)


def test_the_switch_of_all_controllers_is_read_with_the_tenants(path: Path) -> None:
    watched = LiveTenants(TenantsPath(path))
    assert not watched.frozen
    replace(path, "tenants: {a: {}}\ncontrollers: {frozen: true}\n")
    assert watched.refresh()
    assert watched.frozen
    replace(path, "tenants: {a: {}}\ncontrollers: {frozen: perhaps}\n")
    assert not watched.refresh()
    assert watched.frozen
    replace(path, "tenants: {a: {}}\n")
    assert watched.refresh()
    assert not watched.frozen


def test_a_priority_that_the_running_gateway_lacks_is_refused(path: Path) -> None:
    watched = LiveTenants(TenantsPath(path), ("gold", "silver"))
    replace(path, "tenants: {b: {priority: bulk}}\n")
    assert not watched.refresh()
    assert watched.current.names == ("a",)
    assert watched.problem is not None
    assert "tenants.b.priority: is 'bulk'; must be one of gold, silver" in watched.problem


def test_file_that_vanishes_keeps_the_last_good_one(path: Path) -> None:
    watched = LiveTenants(TenantsPath(path))
    path.unlink()
    assert not watched.refresh()
    assert watched.problem is not None
    assert "cannot be read" in watched.problem
    path.write_text("tenants: {back: {}}\n")
    assert watched.refresh()
    assert watched.current.names == ("back",)


def test_first_reading_needs_a_valid_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsErrors):
        LiveTenants(TenantsPath(tmp_path / "none.yaml"))


# ---- a folder, and what was published ------------------------------------------------------


def test_files_of_a_folder_say_it_together(tmp_path: Path) -> None:
    (tmp_path / "tenants.yaml").write_text("tenants: {a: {weight: 3}, b: {}}\n")
    hashed = "sha256:" + hashlib.sha256(b"hr_a").hexdigest()
    (tmp_path / "keys.yaml").write_text(f"tenants: {{a: {{keys: ['{hashed}']}}}}\n")
    live = LiveTenants(TenantsPath(tmp_path))
    assert live.current.names == ("a", "b")
    assert live.current.identify(b"Bearer hr_a", None, None).tenant.weight == 3
    (tmp_path / "more.yaml").write_text("tenants: {a: {weight: 4}}\n")
    assert not live.refresh()
    assert live.problem is not None
    assert "tenants.a.weight: is also in another file of the folder" in live.problem


def test_keys_that_vanish_from_a_folder_do_not_open_the_door(tmp_path: Path) -> None:
    (tmp_path / "tenants.yaml").write_text("tenants: {a: {weight: 3}}\n")
    hashed = "sha256:" + hashlib.sha256(b"hr_a").hexdigest()
    (tmp_path / "keys.yaml").write_text(f"tenants: {{a: {{keys: ['{hashed}']}}}}\n")
    live = LiveTenants(TenantsPath(tmp_path))
    (tmp_path / "keys.yaml").unlink()
    assert not live.refresh()
    assert "no tenant has a list of keys any more" in (live.problem or "")
    assert live.current.identify(b"Bearer hr_a", None, None).tenant.name == "a"


def test_a_gateway_that_starts_without_the_file_of_keys_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "tenants.yaml").write_text("tenants: {a: {weight: 3}}\n")
    started = LiveTenants(TenantsPath(tmp_path))
    with pytest.raises(Unauthorized, match="no tenant has one here"):
        started.current.identify(None, b"a", None)
    meant = LiveTenants(TenantsPath(tmp_path), auth="open")
    assert meant.current.identify(None, b"a", None).tenant.name == "a"
    hashed = "sha256:" + hashlib.sha256(b"hr_a").hexdigest()
    (tmp_path / "keys.yaml").write_text(f"tenants: {{a: {{keys: ['{hashed}']}}}}\n")
    assert started.refresh()
    assert started.current.identify(b"Bearer hr_a", None, None).tenant.name == "a"


@pytest.mark.parametrize("text", ["tenants: {a: {}}\n", "tenants: {}\n"])
def test_published_tenants_that_lost_their_keys_do_not_open_the_door(text: str) -> None:
    hashed = "sha256:" + hashlib.sha256(b"hr_a").hexdigest()
    keyed = f"tenants: {{a: {{keys: ['{hashed}']}}}}\n"
    store = Store(keyed)
    live = LiveTenants(PublishedTenants(store.fetch))
    store.text = text
    assert not live.refresh()
    assert "no tenant has a list of keys any more" in (live.problem or "")
    with pytest.raises(Unauthorized):
        live.current.identify(None, b"a", None)
    strict = LiveTenants(PublishedTenants(lambda: keyed), auth="required")
    strict._source = PublishedTenants(store.fetch)
    assert strict.refresh()  # they open nothing
    with pytest.raises(Unauthorized):
        strict.current.identify(b"Bearer hr_a", None, None)


def test_the_switch_leaves_published_tenants_as_they_are() -> None:
    """So tenants that are published while it is turned, without a key, do not get it back."""
    store = Store("tenants: {a: {}}\n")
    live = LiveTenants(PublishedTenants(store.fetch, OperatorsSwitch(store.frozen, store.freeze)))
    applied = "tenants: {b: {}}\ncontrollers: {frozen: false}\n"
    store.text = applied  # since this gateway looked
    live.publish_frozen(True)
    assert store.text == applied
    assert live.refresh()
    assert (live.frozen, live.current.names) == (True, ("b",))
    store.text = "tenants: {c: {weight: -1}}\n"
    live.publish_frozen(False)  # needs no tenants that can be read
    assert not live.refresh()
    assert (live.frozen, live.current.names) == (False, ("b",))


def test_the_switch_is_what_the_tenants_say_until_an_operator_turns_it() -> None:
    store = Store("tenants: {}\ncontrollers: {frozen: true}\n")
    live = LiveTenants(PublishedTenants(store.fetch, OperatorsSwitch(store.frozen, store.freeze)))
    assert live.frozen
    store.switch = False
    live.refresh()
    assert not live.frozen
    store.fault = ConnectionError("gone")
    live.refresh()
    assert not live.frozen
    store.fault, store.switch = None, None
    live.refresh()
    assert live.frozen
    with pytest.raises(ValueError, match="cannot be turned here"):
        LiveTenants(PublishedTenants(store.fetch)).publish_frozen(True)


def test_a_folder_that_is_emptied_keeps_the_last_good_ones(tmp_path: Path) -> None:
    (tmp_path / "tenants.yaml").write_text("tenants: {a: {}}\n")
    live = LiveTenants(TenantsPath(tmp_path))
    (tmp_path / "tenants.yaml").unlink()
    assert not live.refresh()
    assert live.current.names == ("a",)
    assert "has no *.yaml file" in (live.problem or "")


class Store:
    """The cluster's store: a text and the operators' switch, or a fault."""

    def __init__(self, text: str | None) -> None:
        self.text = text
        self.switch: bool | None = None
        self.fault: Exception | None = None

    def freeze(self, frozen: bool) -> None:
        self.switch = frozen

    def frozen(self) -> bool | None:
        if self.fault is not None:
            raise self.fault
        return self.switch

    def fetch(self) -> str | None:
        if self.fault is not None:
            raise self.fault
        return self.text


def test_published_tenants_are_taken_up_and_kept_while_the_store_is_away() -> None:
    store = Store("tenants: {a: {}}\n")
    live = LiveTenants(PublishedTenants(store.fetch))
    assert not live.refresh()
    store.text = "tenants: {b: {}}\n"
    assert live.refresh()
    assert live.current.names == ("b",)
    store.fault = ConnectionError("gone")
    assert not live.refresh()
    assert live.current.names == ("b",)


@pytest.mark.parametrize("text", [None, "", "tenants: {a: {weight: -1}}\n"])
def test_nothing_published_never_opens_the_door(text: str | None) -> None:
    with pytest.raises(SettingsErrors):
        LiveTenants(PublishedTenants(Store(text).fetch))
    store = Store("tenants: {a: {}}\n")
    live = LiveTenants(PublishedTenants(store.fetch))
    store.text = text
    assert not live.refresh()
    assert live.current.names == ("a",)
    assert live.problem is not None
