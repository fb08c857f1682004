"""The contract of a protocol: it renders planned requests, and reads what answers say.

A `Wire` is one protocol towards one server. It renders requests and, if more than the status
counts, reads answers as they arrive. The player sends, times and counts requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import httpx

from loadtests.client.http1 import Response, Target
from loadtests.traffic.plan import Planned

METADATA_S = 10.0


class WireError(ValueError):
    """The server, the model or the adapter's file does not fit the protocol; says why."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The server that requests are sent to, and how callers present themselves."""

    url: str  # of the server; the protocol adds paths
    model: str
    headers: Mapping[str, str] = field(default_factory=dict)

    # By tenant, for tenants that have one.
    keys: Mapping[str, str] = field(default_factory=dict)  # sent as bearer tokens
    budgets_ms: Mapping[str, float] = field(default_factory=dict)  # sent as `x-timeout-ms`
    priorities: Mapping[str, str] = field(default_factory=dict)

    extra: Mapping[str, Any] = field(default_factory=dict)  # merged into each JSON body
    stream: bool = True
    adapter: str = ""  # the file of a `custom` protocol
    ca: str = ""  # PEM file of authorities to trust over https; "": the system's

    @property
    def target(self) -> Target:
        """Raises ValueError."""
        return Target.parse(self.url, self.ca)

    def metadata(self) -> dict[str, Any]:
        """What the server says of the model (Open Inference Protocol). Raises WireError."""
        url = f"{self.url.rstrip('/')}/v2/models/{self.model}"
        key = next(iter(self.keys.values()), None)
        bearer = {"authorization": f"Bearer {key}"} if key else {}
        try:
            # No proxy, as for the requests that are measured.
            answer = httpx.get(
                url, headers={**bearer, **self.headers}, timeout=METADATA_S, trust_env=False,
                verify=self.target.context or True,
            )  # fmt: skip
        except (httpx.HTTPError, OSError) as error:
            raise WireError(f"{url}: {error}") from None
        if answer.status_code != 200:
            raise WireError(f"{url}: answered {answer.status_code}; is the model's name right?")
        try:
            found = answer.json()
        except ValueError:
            raise WireError(f"{url}: answered no JSON") from None
        if not isinstance(found, dict):
            raise WireError(f"{url}: answered no JSON object")
        return found


class Heads:
    """What goes before a body: one head a tenant, rendered once; only lengths and sessions vary.

    Whoever the planned request's tenant is says `x-tenant`, or its key; `x-priority`,
    `x-timeout-ms` and `x-session-id` say what the scenario does. `path` wins over the URL's own.
    """

    def __init__(self, place: Endpoint, path: str, method: str = "POST") -> None:
        target = place.target
        self.target = replace(target, path=target.path.rstrip("/") + path)
        self._place = place
        self._method = method
        self._heads: dict[str, bytes] = {}

    def request(self, planned: Planned, body: bytes, more: bytes = b"") -> bytes:
        """`more`: further header lines, each with its line end."""
        head = self._heads.get(planned.tenant)
        if head is None:
            head = self._heads[planned.tenant] = self._head(planned.tenant)
        if planned.session:
            more += b"x-session-id: %s\r\n" % planned.session.encode()
        return b"%s%d\r\n%s\r\n%s" % (head, len(body), more, body)

    def _head(self, tenant: str) -> bytes:
        place, target = self._place, self.target
        fields = {"host": f"{target.host}:{target.port}", "content-type": "application/json"}
        if tenant in place.keys:
            fields["authorization"] = f"Bearer {place.keys[tenant]}"
        elif tenant != "default":
            fields["x-tenant"] = tenant
        if tenant in place.priorities:
            fields["x-priority"] = place.priorities[tenant]
        if tenant in place.budgets_ms:
            fields["x-timeout-ms"] = str(max(1, round(place.budgets_ms[tenant])))
        fields |= {name.lower(): value for name, value in place.headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"{self._method} {target.path} HTTP/1.1\r\n{lines}content-length: ".encode("latin-1")


@dataclass(slots=True)
class AnswerFacts:
    """What an answer said besides its status."""

    # When the first and the last token came, on the player's clock; None: not a stream.
    first_s: float | None = None
    last_s: float | None = None
    tokens_out: int = 0
    trouble: str = ""  # why an answer with a 2xx status does not count as one

    @property
    def per_token_s(self) -> float | None:
        """Mean seconds of a token after the first; None for fewer than two tokens."""
        if self.first_s is None or self.last_s is None or self.tokens_out < 2:
            return None
        return (self.last_s - self.first_s) / (self.tokens_out - 1)


class ResponseListener(Protocol):
    """Of one answer. `streams`: it wants each piece of a body as it comes."""

    streams: bool
    heard: AnswerFacts

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
