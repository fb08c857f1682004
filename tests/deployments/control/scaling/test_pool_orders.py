from __future__ import annotations

from autoscaling.types import PoolReading, ResidentReading
from deployments.contract.scaling.messages import (
    KeptModel,
    PoolModel,
    PoolOrder,
    PoolReport,
    Resident,
)
from deployments.control.scaling.pool_orders import SILENT_S, PoolOrderBook

MODELS = {name: PoolModel(name, f"key-{name}", {"name": name}) for name in "abc"}


def test_a_report_is_read_with_the_moment_at_which_a_model_began_to_serve():
    resident = Resident("a", "key-a", True, 100, 2.0, age_s=5.0, busy=False)
    reading = PoolOrderBook(0).on_report(PoolReport("p1", (resident,), 900), (), 50.0)
    assert reading == PoolReading("p1", (ResidentReading("a", True, 100, 2.0, 45.0, False),), 900)


def test_what_is_kept_of_the_present_settings_is_read_with_its_time_to_wake():
    kept = (KeptModel("a", "key-a", 0.5, 10, 90), KeptModel("b", "old", 0.5, 10))
    reading = PoolOrderBook(0).on_report(PoolReport("p1", kept=kept), {"key-a", "key-b"}, 0.0)
    assert reading == PoolReading("p1", kept={"a": 0.5})


def test_nothing_is_ordered_before_anything_was_decided():
    orders = PoolOrderBook(100)
    orders.on_report(PoolReport("p1"), (), 0.0)
    assert orders.order("p1") == PoolOrder(0)


def test_an_order_has_another_number_only_when_it_says_something_else():
    orders = PoolOrderBook(100)
    for name in ("p1", "p2"):
        orders.on_report(PoolReport(name), (), 0.0)
    assert orders.decide({"p1": ("a",), "p2": ()}, MODELS)
    assert not orders.decide({"p1": ("a",), "p2": ()}, MODELS)
    first = orders.order("p1")
    assert (first.models, first.revision > 100) == ((MODELS["a"],), True)
    assert orders.decide({"p1": ("a", "b"), "p2": ()}, MODELS)
    assert orders.order("p1").revision > orders.order("p2").revision
    changed = {**MODELS, "a": PoolModel("a", "other", {})}
    assert orders.decide({"p1": ("a", "b"), "p2": ()}, changed)


def test_what_is_no_model_of_the_pool_any_more_is_not_ordered():
    orders = PoolOrderBook(100)
    orders.on_report(PoolReport("p1"), (), 0.0)
    orders.decide({"p1": ("a", "z"), "gone": ("a",)}, MODELS)
    assert orders.order("p1").models == (MODELS["a"],)
    assert orders.order("gone") == PoolOrder(0)


def test_a_replica_that_says_nothing_is_gone():
    orders = PoolOrderBook(100)
    orders.on_report(PoolReport("p1"), (), 0.0)
    orders.on_report(PoolReport("p2"), (), 5.0)
    orders.decide({"p1": ("a",)}, MODELS)
    assert orders.sweep(SILENT_S + 1) == {"p1"}
    assert [each.replica for each in orders.reports()] == ["p2"]
    assert orders.order("p1") == PoolOrder(0)
