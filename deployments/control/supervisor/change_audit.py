"""Writes an audit line for every change that the host is asked for: who, what, and the result.

Digests are of the settings in force before and after the change. A change that is refused gets a
line too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from deployments.control.supervisor.control_socket import ASKER, Handler
from deployments.process import audit
from deployments.process.audit import AuditLine
from deployments.settings.load import dump, settings_digest
from deployments.settings.tree import Settings


def audited_handlers(
    handlers: dict[str, Handler], settings: Callable[[], Settings]
) -> dict[str, Handler]:
    """The handlers; those that change something also write a line. `settings` returns those in
    force."""
    return {
        do: _audited(_OBJECTS[do], handler, settings) if do in _OBJECTS else handler
        for do, handler in handlers.items()
    }


def digest_of(settings: Settings) -> str:
    return settings_digest(dump(settings))[: audit.DIGITS]


def _audited(
    of: Callable[[dict[str, Any]], str], handler: Handler, settings: Callable[[], Settings]
) -> Handler:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        before = digest_of(settings())
        asked = AuditLine(
            request.get(ASKER, ""), request["do"], of(request), "control socket", before
        )
        with audit.audited(asked) as instead:
            found = handler(request)
            outcome = audit.REFUSED if "error" in found else audit.DONE
            error = str(found.get("error", ""))
            after = digest_of(settings())
            instead(replace(asked, after=after, outcome=outcome, detail=error))
        return found

    return answer


def _scaled(request: dict[str, Any]) -> str:
    number = request.get("replicas")
    group = f" group {request['group']}" if request.get("group") else ""
    return f"model {request.get('model')}{group}: {'auto' if number is None else number}"


def _revoked(request: dict[str, Any]) -> str:
    return f"key {audit.nameable(str(request.get('key', '')))}"


def _model(request: dict[str, Any]) -> str:
    reason = f": {request['reason']}" if request.get("reason") else ""
    return f"model {request.get('model')}{reason}"


_OBJECTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "apply": lambda request: str(request.get("path", "")),
    "freeze": lambda request: f"controllers: {'frozen' if request.get('frozen') else 'free'}",
    "scale": _scaled,
    "promote": _model,
    "abort": _model,
    "rollback": _model,
    "revoke": _revoked,
}
