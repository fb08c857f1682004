"""Who may read which page: the one list of what is public, and who sees how much of the rest.

Where callers need keys, `PUBLIC` is all that is answered without one, and it names no model.
`OPERATORS` is answered to operators alone; everything else to whoever has a key, and shows a tenant
no model but its own. Where callers need none (`gateway.auth: open`), everything but `/admin/...` is
everybody's. What runs models (the pipeline's endpoints) asks for a tenant by itself.
"""

from __future__ import annotations

from deployments.contract import errors
from deployments.gateway.http.exchange import Exchange
from deployments.gateway.tenancy.tenants import Reader, Tenants

PUBLIC = frozenset({"live", "ready"})
OPERATORS = frozenset({"metrics", "all_statistics", "model_statistics"})
ADMIN = frozenset({"admin_status", "admin_controllers", "admin_keys", "admin_revoke"})
NOBODY = Reader(models=frozenset())


def reader_of(tenants: Tenants, exchange: Exchange, endpoint: str) -> Reader:
    """Raises Unauthorized and Forbidden."""
    if endpoint in ADMIN:
        return tenants.operator(exchange.headers.get(b"authorization"))
    if not tenants.need_keys:
        return Reader()
    try:
        reader = tenants.reader(exchange.headers.get(b"authorization"))
    except errors.Unauthorized:
        if endpoint in PUBLIC:
            return NOBODY
        raise
    if endpoint in OPERATORS and not reader.is_operator:
        raise errors.Forbidden("this page is for operators; send an operator's key")
    return reader
