"""What a dispatcher's refusal becomes for the caller and for metrics."""

from __future__ import annotations

import pytest

from deployments.gateway.queues.dispatcher_driver import refusal
from routers.api.requests import Reason

STATUSES = {
    Reason.QUEUE_FULL: 503,
    Reason.LATE: 503,
    Reason.LOST: 503,
    Reason.INTERRUPTED: 503,
    Reason.FAILED: 503,
    Reason.CLOSED: 503,
    Reason.TOO_LONG: 400,
    Reason.TOO_LARGE: 400,
    Reason.EXPIRED: 504,
    Reason.TENANT_FULL: 429,
}


@pytest.mark.parametrize("reason", Reason)
def test_a_refusal_keeps_its_reason_beside_its_status(reason: Reason) -> None:
    error = refusal(reason, 3.0)
    assert (error.status, error.reason) == (STATUSES[reason], reason.value)


@pytest.mark.parametrize("reason", Reason)
def test_every_refusal_for_load_says_when_to_ask_again(reason: Reason) -> None:
    assert bool(refusal(reason, 0.0).headers()) == (STATUSES[reason] in (429, 503))


def test_a_full_queue_passes_on_what_the_dispatcher_said() -> None:
    assert refusal(Reason.QUEUE_FULL, 3.2).headers() == [(b"retry-after", b"4")]
