"""Which bytes go before a body: one head a tenant, rendered once; only lengths and sessions vary.

Whoever the planned request's tenant is says `x-tenant`, or its key; `x-priority`, `x-timeout-ms`
and `x-session-id` say what the scenario does.
"""

from __future__ import annotations

from dataclasses import replace

from loadtests.client.protocols.types import Endpoint
from loadtests.traffic.plan import Planned


class Heads:
    """`path` wins over the URL's own."""

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
