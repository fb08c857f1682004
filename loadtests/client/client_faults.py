"""Requests that misbehave.

A share of clients disconnect at a random moment, give their request next to no time, or send
malformed requests, as the outside world does. `Conduct` is chosen a request by an injected
generator. A misbehaving request is never a latency sample; what the server said to it is counted
by kind, so that a 500 to a malformed request is seen.

Source for the kinds of malformed requests: what the HTTP surface promises to answer with a 4xx.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import Enum

from loadtests.client.http1 import Target, render


class Conduct(Enum):
    PLAIN = "plain"
    DISCONNECT = "disconnect"
    HURRY = "hurry"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class ClientFaults:
    """Shares of all requests, each 0 to 1, their sum at most 1. `hurry_ms`: the time such a request
    allows the server; `disconnect_within_s`: how long after sending a leaver leaves at the latest
    (a malformed one that is never answered, such as half a body, is left alone for as long)."""

    disconnect: float = 0.0
    hurry: float = 0.0
    malformed: float = 0.0
    hurry_ms: int = 3
    disconnect_within_s: float = 0.02
    malformed_requests: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        shares = (self.disconnect, self.hurry, self.malformed)
        if min(shares) < 0 or sum(shares) > 1:
            raise ValueError(f"shares {shares} must lie in 0..1 and not exceed 1 together")
        if self.malformed and not self.malformed_requests:
            raise ValueError("a share of malformed requests needs some to send")

    @property
    def total(self) -> float:
        return self.disconnect + self.hurry + self.malformed

    def conduct(self, rng: random.Random) -> Conduct:
        drawn = rng.random()
        if drawn >= self.total:
            return Conduct.PLAIN
        if drawn < self.disconnect:
            return Conduct.DISCONNECT
        return Conduct.HURRY if drawn < self.disconnect + self.hurry else Conduct.MALFORMED


def hurried(request: bytes, budget_ms: int) -> bytes:
    """The same request, allowed `budget_ms` milliseconds."""
    return request.replace(b"\r\n", f"\r\nx-timeout-ms: {budget_ms}\r\n".encode(), 1)


def malformed_requests(target: Target, good_body: bytes) -> tuple[bytes, ...]:
    """Requests of which each deserves a 4xx, or (the last two) no answer at all."""
    absent = replace(target, path="/v2/models/no-such-model/infer")
    bodies = (
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe\x00",
        b'{"inputs": []}',
        b'{"inputs": [{"name": "nobody", "shape": [1, 1], "datatype": "INT64", "data": [1]}]}',
        good_body.replace(b'"shape"', b'"sharp"', 1),
        good_body.replace(b"INT64", b"INT65", 1),
        good_body.replace(b"[1,", b"[-1,", 1),
        good_body.replace(b"[1,", b"[1000000000000,", 1),
        good_body[: len(good_body) // 2],
    )
    whole = [render(target, body) for body in bodies]
    whole.append(render(absent, good_body))
    whole.append(render(target, method="DELETE"))
    whole.append(b"POST \x00\x01 HTTP/1.1\r\nhost: rubbish\r\n\r\n")
    half = render(target, good_body)
    return (*whole, half[: len(half) - 7], half[:30])
