"""How long a request was under way before the gateway, by what its proxy wrote."""

import pytest

from deployments.gateway.http.request_head import sent_at_s, upstream_wait_s


@pytest.mark.parametrize(
    "header",
    [
        b"t=1700000000.250", b"1700000000.250", b"t=1700000000250", b"1700000000250",
        b"t=1700000000250000", b"1700000000250000000", b" t=1700000000.25 ",
    ],
)  # fmt: skip
def test_seconds_milliseconds_micros_and_nanos_are_told_apart(header):
    assert sent_at_s(header) == pytest.approx(1_700_000_000.25, abs=1e-6)


@pytest.mark.parametrize(
    "header",
    [b"", b"t=", b"soon", b"nan", b"inf", b"-1700000000", b"0", b"17", b"1e300", b"1" * 33,
     b"t=1700000000,1700000001", b"\xff"],
)  # fmt: skip
def test_nonsense_is_no_time(header):
    assert sent_at_s(header) is None


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (1_700_000_000.0, 0.0), (1_700_000_000.5, 0.5), (1_700_003_600.0, 3600.0),
        (1_700_003_600.1, None), (1_699_999_999.9, None),
    ],
)  # fmt: skip
def test_a_wait_from_the_future_or_over_an_hour_is_left_out(now, expected):
    assert upstream_wait_s(b"t=1700000000.000", now) == expected


def test_no_header_is_no_wait():
    assert upstream_wait_s(None, 1_700_000_000.0) is None
