"""Who a caller is taken for: by header while nobody has keys, by key alone as soon as one has."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from deployments.contract.errors import BadRequest, Unauthorized
from deployments.gateway.tenancy.live_tenants import (
    LiveTenants,
    OperatorsSwitch,
    PublishedTenants,
    TenantsPath,
)
from deployments.gateway.tenancy.tenants import Tenants, hash_key, new_key
from deployments.settings.load import SettingsErrors
from deployments.settings.tenant import TenantSettings
from deployments.settings.tree import TenantsSettings

ACME = "hr_acme"
OTHER = "hr_other"


def test_new_key_comes_with_the_hash_that_settings_take() -> None:
    key, hashed = new_key()
    (only,) = TenantSettings.model_validate({"keys": [hashed]}).keys or ()
    assert only.hash == hashed
    assert hashed == "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def test_keys_differ_and_hold_32_random_bytes() -> None:
    keys = {new_key()[0] for _ in range(50)}
    assert len(keys) == 50
    assert all(key.startswith("hr_") and len(key) == 3 + 43 for key in keys)


def test_text_and_bytes_of_a_key_hash_alike() -> None:
    assert hash_key("hr_é") == hash_key("hr_é".encode())


def tenants(**declared: dict[str, object]) -> Tenants:
    return Tenants(TenantsSettings.model_validate({"tenants": declared}).tenants)


def named(found: Tenants, key: bytes | None = None, header: bytes | None = None) -> str:
    return found.identify(key, header, None).tenant.name


OPEN = tenants(acme={"weight": 3}, default={})
CLOSED = tenants(acme={"keys": [hash_key(ACME)]}, other={"keys": [hash_key(OTHER)]})
HALF = tenants(acme={"keys": [hash_key(ACME)]}, default={}, keyless={})


def test_the_last_key_revoked_lets_nobody_in_by_name() -> None:
    revoked = tenants(acme={"keys": []}, other={})
    for key, header in ((None, b"acme"), (None, b"other"), (b"Bearer " + ACME.encode(), b"acme")):
        with pytest.raises(Unauthorized):
            named(revoked, key, header)


def test_keys_are_needed_where_the_gateway_says_so_although_nobody_has_one_yet() -> None:
    declared = TenantsSettings.model_validate({"tenants": {"acme": {}}}).tenants
    required = Tenants(declared, auth="required")
    with pytest.raises(Unauthorized, match="an API key is required"):
        named(required, header=b"acme")
    assert named(Tenants(declared, auth="open"), header=b"acme") == "acme"


def test_nobody_is_let_in_where_keys_are_needed_and_no_tenant_is_declared() -> None:
    none = Tenants({}, auth="required")
    for key, header in [(None, None), (None, b"default"), (b"Bearer x", None)]:
        with pytest.raises(Unauthorized):
            named(none, key, header)
    with pytest.raises(Unauthorized, match=r"no tenant has one here.*gateway\.auth: open"):
        none.reader(None)


def test_a_gateway_that_is_open_takes_no_tenants_with_keys(tmp_path: Path) -> None:
    path = tmp_path / "tenants.yaml"
    path.write_text("tenants: {acme: {}}\n")
    live = LiveTenants(TenantsPath(path), auth="open")
    path.write_text(f"tenants: {{acme: {{keys: ['{hash_key(ACME)}']}}}}\n")
    assert not live.refresh()
    assert "gateway.auth is open; must be required" in (live.problem or "")
    assert named(live.current, header=b"acme") == "acme"


def test_without_tenants_everybody_is_default() -> None:
    none = tenants()
    assert named(none) == "default"
    assert named(none, b"Bearer anything") == "default"
    assert named(none, header=b"default") == "default"
    assert none.names == ("default",)
    with pytest.raises(Unauthorized):
        named(none, header=b"acme")


def test_without_keys_the_header_chooses_and_authorization_is_ignored() -> None:
    assert named(OPEN, header=b"acme") == "acme"
    assert named(OPEN, b"Bearer hr_wrong", b" acme ") == "acme"
    assert named(OPEN, b"Basic eDp5") == "default"


@pytest.mark.parametrize("header", [b"nobody", b"", b"\xff\xfe", b"ACME"])
def test_unknown_tenant_is_refused(header: bytes) -> None:
    with pytest.raises(Unauthorized, match="an unknown tenant"):
        named(OPEN, header=header)


def test_without_default_a_tenant_must_be_named() -> None:
    with pytest.raises(Unauthorized, match="x-tenant"):
        named(tenants(acme={}))


def test_with_keys_the_key_alone_says_who() -> None:
    assert named(CLOSED, b"Bearer hr_acme") == "acme"
    assert named(CLOSED, b"bearer  hr_other ", b"acme") == "other"


def test_with_keys_the_header_opens_nothing() -> None:
    with pytest.raises(Unauthorized, match="an API key is required"):
        named(CLOSED, header=b"acme")
    assert named(HALF, header=b"acme") == "default"
    assert named(HALF, header=b"keyless") == "default"


@pytest.mark.parametrize(
    "authorization", [b"Bearer hr_wrong", b"Bearer sha256:", b"Bearer \xff", b"Bearer hr_acme x"]
)
def test_unknown_key_is_refused_even_where_default_is_open(authorization: bytes) -> None:
    for found in (CLOSED, HALF):
        with pytest.raises(Unauthorized, match=r"^the API key is unknown, expired or revoked$"):
            named(found, authorization)


def test_hash_of_a_key_is_no_key() -> None:
    with pytest.raises(Unauthorized):
        named(CLOSED, b"Bearer " + hash_key(ACME).encode())


@pytest.mark.parametrize(
    "authorization", [b"", b"Bearer", b"Bearer ", b"Basic hr_acme", b"hr_acme"]
)
def test_authorization_of_another_kind_is_told_the_right_one(authorization: bytes) -> None:
    with pytest.raises(Unauthorized, match="must be `Bearer <key>`"):
        named(HALF, authorization)


@pytest.mark.parametrize(
    ("own", "asked", "given"),
    [
        ("interactive", None, "interactive"),
        ("interactive", b"bulk", "bulk"),
        ("interactive", b"Standard ", "standard"),
        ("standard", b"interactive", "standard"),
        ("bulk", b"interactive", "bulk"),
        ("bulk", b"bulk", "bulk"),
    ],
)
def test_priority_is_lowered_never_raised(own: str, asked: bytes | None, given: str) -> None:
    caller = tenants(default={"priority": own}).identify(None, None, asked)
    assert caller.priority == given
    assert caller.rank == ["interactive", "standard", "bulk"].index(given)


@pytest.mark.parametrize(
    ("priorities", "unset"),
    [
        (("only",), "only"),
        (("first", "last"), "last"),
        (("interactive", "standard", "bulk"), "standard"),
        (("a", "b", "c", "d"), "c"),
    ],
)
def test_a_tenant_without_a_priority_has_the_middle_one(
    priorities: tuple[str, ...], unset: str
) -> None:
    for found in (Tenants({}, priorities), Tenants({"default": TenantSettings()}, priorities)):
        caller = found.identify(None, None, None)
        assert (caller.priority, caller.rank) == (unset, priorities.index(unset))


def test_priorities_are_the_gateways() -> None:
    found = Tenants({"default": TenantSettings(priority="gold")}, ("gold", "silver"))
    assert found.identify(None, None, b"silver").rank == 1
    with pytest.raises(BadRequest, match="one of gold, silver"):
        found.identify(None, None, b"bulk")


@pytest.mark.parametrize("asked", [b"", b"urgent", b"0", b"\xff"])
def test_unknown_priority_is_a_bad_request(asked: bytes) -> None:
    with pytest.raises(BadRequest, match="one of interactive, standard, bulk"):
        OPEN.identify(None, None, asked)


def test_tenant_carries_its_limits() -> None:
    limits = {"weight": 2, "max_length": 9, "max_queue_rows": 5, "rate": {"requests_per_s": 7}}
    found = tenants(default={**limits, "models": ["a"]})
    tenant = found.identify(None, None, None).tenant
    assert (tenant.weight, tenant.max_length, tenant.max_queue_rows) == (2, 9, 5)
    assert (tenant.rate.requests_per_s, tenant.rate.tokens_per_s) == (7, None)
    assert tenants(default={}).identify(None, None, None).tenant.max_queue_rows == 0
    assert tenant.may_use("a")
    assert not tenant.may_use("b")
    assert tenants(default={}).identify(None, None, None).tenant.may_use("b")
    assert not tenants(default={"models": []}).identify(None, None, None).tenant.may_use("b")


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
    assert "tenants.a.weight: stands in another file of the folder too" in live.problem


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
