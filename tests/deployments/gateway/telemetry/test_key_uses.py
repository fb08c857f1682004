"""What is told of keys: by id, only of those in force, and of a bounded number."""

from __future__ import annotations

from math import inf

from deployments.gateway.telemetry import key_uses
from deployments.gateway.telemetry.key_uses import KeyUse, KeyUses
from deployments.gateway.telemetry.levels import GatewayLevels
from deployments.gateway.telemetry.metrics import GatewayMetrics
from deployments.gateway.tenancy.tenants import Key, Tenant

A = Tenant("a")


def key(name: str, ends_s: float = inf, tenant: Tenant | None = A) -> Key:
    return Key(name, tenant, -inf, ends_s)


def counted(uses: KeyUses) -> dict[tuple[str, str], int]:
    return {labels: use.uses for labels, use in uses}


def test_a_use_is_counted_by_the_keys_id_with_its_time() -> None:
    uses = KeyUses()
    uses.declare((key("root", tenant=None), key("x", 7.0)))
    for wall_s in (5.0, 6.0):
        uses.used("x", wall_s)
    assert dict(uses) == {("", "root"): KeyUse(), ("a", "x"): KeyUse(2, 6.0, 7.0)}


def test_uses_after_its_end_are_counted_apart() -> None:
    uses = KeyUses()
    uses.declare((key("x", 7.0),))
    for name in ("x", "unknown"):
        uses.used_late(name)
    assert dict(uses) == {("a", "x"): KeyUse(0, None, 7.0, 1)}


def test_the_first_use_of_a_day_is_taken_once() -> None:
    uses, day = KeyUses(), 86_400.0
    uses.declare((key("x"), key("y")))
    uses.used("x", 1.0)
    uses.used("x", 2.0)
    assert [uses.take_first_of_day(9) for _ in range(2)] == [[("a", "x")], []]
    uses.used("x", day - 1.0)
    uses.used("y", day)
    assert uses.take_first_of_day(9) == [("a", "y")]
    uses.used("x", day + 1.0)
    assert uses.take_first_of_day(9) == [("a", "x")]


def test_many_first_uses_are_taken_a_few_at_a_time(monkeypatch) -> None:
    monkeypatch.setattr(key_uses, "MAX_NAMED", 3)
    uses = KeyUses()
    uses.declare(tuple(key(name) for name in "abcd"))
    for name in "abcd":  # the last one is counted as one of the rest
        uses.used(name, 1.0)
    taken = [uses.take_first_of_day(2) for _ in range(3)]
    assert taken == [[("a", "a"), ("a", "b")], [("a", "c")], []]


def test_counts_outlive_other_tenants_and_end_with_their_key() -> None:
    uses = KeyUses()
    uses.declare((key("x"), key("y")))
    uses.used("x", 1.0)
    uses.declare((key("x"),))
    uses.used("y", 2.0)
    assert counted(uses) == {("a", "x"): 1}
    uses.declare((key("x", tenant=Tenant("b")),))  # another's key of that id
    assert counted(uses) == {("b", "x"): 0}


def test_what_is_beyond_the_bound_is_counted_together() -> None:
    uses = KeyUses()
    uses.declare(tuple(key(f"k{n}") for n in range(key_uses.MAX_NAMED + 2)))
    for name in ("k0", f"k{key_uses.MAX_NAMED}", f"k{key_uses.MAX_NAMED + 1}"):
        uses.used(name, 1.0)
    found = counted(uses)
    assert len(found) == key_uses.MAX_NAMED + 1
    assert (found["a", "k0"], found["", "other"]) == (1, 2)


def test_the_page_tells_of_keys_and_of_the_tenants_age() -> None:
    keys = ((("a", "x"), KeyUse(2, 6.0, 7.0, 4)), (("a", "y"), KeyUse()))
    metrics = GatewayMetrics("g", levels=lambda: GatewayLevels(keys=keys, tenants_age_s=1.5))
    page = metrics.exposition()[0].decode()
    assert 'headrace_key_requests_total{gateway="g",key="x",tenant="a"} 2.0' in page
    assert 'headrace_key_last_used_timestamp_seconds{gateway="g",key="x",tenant="a"} 6.0' in page
    assert 'headrace_key_expires_timestamp_seconds{gateway="g",key="x",tenant="a"} 7.0' in page
    assert 'headrace_key_expired_requests_total{gateway="g",key="x",tenant="a"} 4.0' in page
    assert 'timestamp_seconds{gateway="g",key="y"' not in page
    assert 'headrace_tenants_age_seconds{gateway="g"} 1.5' in page
