"""What a protocol defines: how a planned request looks, and what its answer says.

A `Wire` is one protocol towards one server: it renders requests and, where a status is not all that
counts, hears answers as they come. Sending, pacing and counting are the player's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from loadtests.client.http1 import Response, Target
from loadtests.traffic.plan import Planned


class WireError(ValueError):
    """The server, the model or the adapter's file does not fit the protocol; says why."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go and as whom. `url`: of the server, paths are the protocol's. `keys`: by
    tenant, sent as bearer tokens. `extra`: laid over each JSON body. `budgets_ms`, `priorities`:
    by tenant, of those that have one. `adapter`: the file of a `custom` protocol."""

    url: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    budgets_ms: Mapping[str, float] = field(default_factory=dict)
    priorities: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = True
    adapter: str = ""

    @property
    def target(self) -> Target:
        """Raises ValueError."""
        return Target.parse(self.url)


@dataclass(slots=True)
class Heard:
    """What an answer said beside its status. `first_s`, `last_s`: when its first and last token
    came, on the player's clock; None of what is no stream. `trouble`: why a 2xx is no answer."""

    first_s: float | None = None
    last_s: float | None = None
    tokens_out: int = 0
    trouble: str = ""

    @property
    def per_token_s(self) -> float | None:
        """Between tokens after the first; None of fewer than two."""
        if self.first_s is None or self.last_s is None or self.tokens_out < 2:
            return None
        return (self.last_s - self.first_s) / (self.tokens_out - 1)


class ResponseListener(Protocol):
    """Of one answer. `streams`: it wants each piece of a body as it comes."""

    streams: bool
    heard: Heard

    def piece(self, data: bytes, at_s: float) -> None: ...
    def ended(self, answer: Response) -> None: ...


class Wire(Protocol):
    """`prepare` asks the server what it has to know, once, before anything is sent, and raises
    WireError; what it found travels with the wire to every process. `reseed`: which rows are sent
    from now on; no two processes or runs send the same."""

    place: Endpoint

    def prepare(self) -> None: ...
    def reseed(self, seed: str) -> None: ...
    def request(self, planned: Planned) -> bytes: ...
    def listener(self, planned: Planned) -> ResponseListener | None: ...
