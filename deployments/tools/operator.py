"""Commands on a running server through its gateways (`--url`), with an operator's key.

The key is read from $HEADRACE_OPERATOR_KEY. All functions raise OperatorRefused.
"""

from __future__ import annotations

import os
from typing import Any

import httpx

from deployments.control.registry.server_status import StatusSnapshot
from deployments.process.key_list import KeyRow

KEY = "HEADRACE_OPERATOR_KEY"
_ANSWER_S = 15.0


class OperatorRefused(Exception):
    """The server did not do what was asked; the message says why."""


def status(url: str) -> StatusSnapshot:
    """The server's status, with its URL."""
    found = _ask("GET", url, "/admin/status")
    return {"url": url, **found}  # type: ignore[typeddict-item]


def freeze(frozen: bool, url: str) -> None:
    """Freeze the controllers of all models, or let them learn again."""
    _ask("PUT", url, "/admin/controllers", json={"frozen": frozen})


def keys(url: str) -> list[KeyRow]:
    """The keys of tenants and operators that the server knows."""
    found: list[KeyRow] = _ask("GET", url, "/admin/keys")["keys"]
    return found


def revoke(name: str, url: str) -> dict[str, Any]:
    """Revoke a key, by its id or hash. Returns the server's answer: the key's id and owner."""
    return _ask("POST", url, "/admin/keys/revoke", json={"key": name})


def _ask(method: str, url: str, path: str, **body: Any) -> dict[str, Any]:
    key = os.environ.get(KEY, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise OperatorRefused(f"${KEY} is no key: it has characters that no key has")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.request(
            method, url.rstrip("/") + path, headers=headers, timeout=_ANSWER_S, **body
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise OperatorRefused(f"{url} does not answer: {error}") from None
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OperatorRefused(
            f"{url} is not a gateway of Headrace: it answered {path} with {answer.status_code}"
        )
    if answer.status_code == 401:
        raise OperatorRefused(
            f"{found.get('error', 'refused')}; the operator's key is read from ${KEY}"
        )
    if answer.status_code != 200:
        raise OperatorRefused(str(found.get("error", answer.status_code)))
    return found
