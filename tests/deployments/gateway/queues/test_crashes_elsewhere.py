"""What other gateways say of inputs that end replicas: replaced, cleared, over in time."""

from __future__ import annotations

import pytest

from deployments.contract.registry import CrashedInput, CrashReport
from deployments.gateway.queues.lost_replicas import RemoteCrashes

KEY, OTHER = b"key", b"other"


@pytest.fixture
def elsewhere() -> RemoteCrashes:
    return RemoteCrashes()


def report(*replicas: str, key: bytes = KEY, left_s: float = 60.0, **spent: float) -> CrashReport:
    inputs = (CrashedInput(key, replicas, left_s, convicted=False),) if replicas else ()
    return CrashReport(inputs, {tenant: {"a": seconds} for tenant, seconds in spent.items()})


def test_nothing_is_known_before_anybody_has_said_anything(elsewhere: RemoteCrashes) -> None:
    assert not elsewhere
    assert elsewhere.others is None
    elsewhere.on_report([], 0, 0.0)
    assert elsewhere.others == 0


def test_replicas_that_several_lost_with_an_input_are_one_set(elsewhere: RemoteCrashes) -> None:
    elsewhere.on_report([report("a", "b"), report("b", "c")], 2, 0.0)
    assert elsewhere.replicas(KEY, 0.0) == {"a", "b", "c"}
    assert elsewhere.replicas(OTHER, 0.0) == frozenset()


def test_what_nobody_says_any_more_is_forgotten(elsewhere: RemoteCrashes) -> None:
    elsewhere.on_report([report("a", acme=60.0)], 1, 0.0)
    assert elsewhere
    elsewhere.on_report([], 1, 1.0)
    assert not elsewhere


def test_what_was_said_ends_in_its_time_where_nobody_says_anything(
    elsewhere: RemoteCrashes,
) -> None:
    elsewhere.on_report([report("a", left_s=60.0, acme=50.0)], 1, 0.0)
    assert elsewhere.spent("acme", 49.0) == {"a": 50.0}
    assert elsewhere.spent("acme", 50.0) == {}
    assert elsewhere.replicas(KEY, 59.0)
    assert not elsewhere.replicas(KEY, 60.0)
    elsewhere.sweep(60.0)
    assert not elsewhere


def test_a_replica_that_several_charge_a_tenant_with_counts_once_and_longest(
    elsewhere: RemoteCrashes,
) -> None:
    other = CrashReport(spent={"acme": {"b": 40.0}})
    elsewhere.on_report([report(acme=50.0), report(acme=60.0), other], 3, 0.0)
    assert elsewhere.spent("acme", 0.0) == {"a": 60.0, "b": 40.0}


def test_an_answer_here_clears_the_replicas_lost_before_and_no_later_one(
    elsewhere: RemoteCrashes,
) -> None:
    elsewhere.on_report([report("a")], 1, 0.0)
    elsewhere.answered(KEY)
    elsewhere.answered(OTHER)
    elsewhere.on_report([report("a")], 1, 1.0)
    assert not elsewhere.replicas(KEY, 1.0)
    elsewhere.on_report([report("a", "b")], 1, 2.0)
    assert elsewhere.replicas(KEY, 2.0) == {"b"}
    elsewhere.on_report([], 1, 3.0)
    elsewhere.on_report([report("a")], 1, 4.0)
    assert elsewhere.replicas(KEY, 4.0) == {"a"}


@pytest.mark.parametrize(
    ("theirs", "may_be"),
    [(("a", "b"), True), (("a", "c", "d"), True), (("b",), False), (("d", "e", "f"), False)],
)
def test_another_input_that_was_on_all_but_one_of_the_replicas_may_be_the_cause(
    elsewhere: RemoteCrashes, theirs: tuple[str, ...], may_be: bool
) -> None:
    elsewhere.on_report([report(*theirs, key=OTHER)], 1, 0.0)
    lost = frozenset({"a", "b", "c"})
    assert elsewhere.was_there(KEY, lost, 1, 0.0) is may_be
    assert not elsewhere.was_there(OTHER, lost, 1, 0.0)
