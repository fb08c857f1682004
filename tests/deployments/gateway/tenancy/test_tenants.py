"""Who a caller is taken for: by header while nobody has keys, by key alone as soon as one has."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from deployments.contract.errors import BadRequest, Unauthorized
from deployments.gateway.tenancy.live_tenants import LiveTenants, TenantsPath
from deployments.gateway.tenancy.tenants import Tenants, hash_key, new_key
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
