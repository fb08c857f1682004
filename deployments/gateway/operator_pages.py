"""What an operator may ask of a running server through any gateway: its state, the switch of its
controllers, its keys and their end.

An operator's key is no tenant's: `operators.keys` of the settings holds their hashes, and without
one these pages are closed to everybody. The switch is published for all gateways, beside the
tenants, and holds until the next deployment says otherwise; a revoked key stays revoked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from deployments.contract import errors
from deployments.contract.registry import ANSWER_S
from deployments.gateway.http.body import small_body
from deployments.gateway.http.exchange import Exchange
from deployments.gateway.http.protocols import json_body
from deployments.gateway.http.protocols.tensors import Encoded
from deployments.gateway.http.request_head import Route
from deployments.gateway.pages import reader_of
from deployments.gateway.tenancy.tenants import KnownTenants
from deployments.process import audit
from deployments.process.audit import AuditLine

_LIMITS = small_body("an operator's request may be")
T = TypeVar("T")
_STORE_S = 10.0
_STATUS_S = 2 * ANSWER_S  # it asks Serve and the autoscaler in turn


class _Switch(msgspec.Struct, forbid_unknown_fields=True):
    frozen: bool


class _Revoked(msgspec.Struct, forbid_unknown_fields=True):
    key: str


class OperatorPages:
    """`registry`: the actor's handle. `used` hears of each key that opened a page, by its id."""

    def __init__(self, registry: Any, tenants: KnownTenants, used: Callable[[str], None]) -> None:
        self._used = used
        self._registry = registry
        self._tenants = tenants
        self._pages: dict[str, Callable[[Exchange, str], Any]] = {
            "admin_status": self._status,
            "admin_controllers": self._controllers,
            "admin_keys": self._keys,
            "admin_revoke": self._revoke,
        }

    def has(self, route: Route) -> bool:
        return route.endpoint in self._pages

    async def answer(self, exchange: Exchange, route: Route) -> None:
        """Raises Unauthorized, Forbidden, BadRequest and NotReady."""
        reader = reader_of(self._tenants.current, exchange, route.endpoint)
        self._used(reader.key)
        found = await self._pages[route.endpoint](exchange, reader.key)
        await exchange.reply(200, Encoded(msgspec.json.encode(found)))

    async def _status(self, exchange: Exchange, key: str) -> dict[str, Any]:
        try:
            asked = self._registry.server_status.remote()
            found: dict[str, Any] = await asyncio.wait_for(asked, _STATUS_S)
        except Exception as fault:
            # Whatever keeps Ray from answering; the gateway itself goes on.
            raise errors.NotReady(
                f"the registry does not answer: {fault!r}", retry_after_s=errors.SOON_S
            ) from None
        return found

    async def _controllers(self, exchange: Exchange, key: str) -> dict[str, Any]:
        switch = await _read(exchange, _Switch, '{"frozen": true} or false')
        asked = f"controllers: {'frozen' if switch.frozen else 'free'}"
        with audit.audited(_line(exchange, key, "freeze", asked)):
            await _stored(self._tenants.publish_frozen, switch.frozen)
        return {"frozen": switch.frozen}

    async def _keys(self, exchange: Exchange, key: str) -> dict[str, Any]:
        return {"keys": self._tenants.key_rows()}

    async def _revoke(self, exchange: Exchange, key: str) -> dict[str, Any]:
        asked = await _read(exchange, _Revoked, '{"key": "its id or hash"}')
        line = _line(exchange, key, "revoke", f"key {audit.nameable(asked.key)}")
        with audit.audited(line):
            name, owner = await _stored(self._tenants.revoke, asked.key)
        return {"revoked": name, "owner": owner}


def _line(exchange: Exchange, key: str, verb: str, what: str) -> AuditLine:
    return AuditLine(f"key {key}", verb, what, f"gateway, {exchange.caller_address}")


async def _read(exchange: Exchange, kind: type[T], must: str) -> T:
    """Raises BadRequest."""
    body = await exchange.body(_LIMITS)
    try:
        return msgspec.json.decode(body, type=kind)
    except json_body.DECODE_ERRORS as wrong:
        fault = json_body.fault(wrong, body)
        raise errors.BadRequest(f"{fault.message} The body must be {must}.") from None


async def _stored(change: Callable[[Any], T], what: Any) -> T:
    """Done off the loop. Raises BadRequest, and NotReady while the cluster's store does not
    answer."""
    try:
        async with asyncio.timeout(_STORE_S):
            return await asyncio.to_thread(change, what)
    except ValueError as wrong:
        raise errors.BadRequest(str(wrong)) from None
    except Exception as fault:
        # Whatever keeps the store from answering.
        raise errors.NotReady(
            f"the cluster's store does not answer: {fault!r}; it may still come about",
            retry_after_s=errors.SOON_S,
        ) from None
