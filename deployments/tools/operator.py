"""The command line's way to a running server through its gateways, with an operator's key."""

from __future__ import annotations

import os
from typing import Any

import click
import httpx

from deployments.contract.key_list import KeyRow
from deployments.contract.server_status import StatusSnapshot

KEY = "HEADRACE_OPERATOR_KEY"
_ANSWER_S = 15.0


class OperatorRefused(Exception):
    """The server did not do it; the message says why."""


def status(url: str) -> StatusSnapshot:
    """Raises OperatorRefused."""
    found = _ask("GET", url, "/admin/status")
    return {"url": url, **found}  # type: ignore[typeddict-item]


def freeze(frozen: bool, url: str) -> int:
    """Raises OperatorRefused."""
    _ask("PUT", url, "/admin/controllers", json={"frozen": frozen})
    click.echo(f"controllers: {'frozen' if frozen else 'no longer frozen'}")
    return 0


def keys(url: str) -> list[KeyRow]:
    """Raises OperatorRefused."""
    found: list[KeyRow] = _ask("GET", url, "/admin/keys")["keys"]
    return found


def revoke(name: str, url: str) -> dict[str, Any]:
    """Raises OperatorRefused."""
    return _ask("POST", url, "/admin/keys/revoke", json={"key": name})


def _ask(method: str, url: str, path: str, **body: Any) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {os.environ.get(KEY, '')}"}
    try:
        answer = httpx.request(
            method, url.rstrip("/") + path, headers=headers, timeout=_ANSWER_S, **body
        )
        found: dict[str, Any] = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise OperatorRefused(f"{url} does not answer: {error}") from None
    except ValueError:
        raise OperatorRefused(f"{url} is no gateway of Headrace ({answer.status_code})") from None
    if answer.status_code == 401:
        raise OperatorRefused(f"{found.get('error', 'refused')}; its key is read from ${KEY}")
    if answer.status_code != 200:
        raise OperatorRefused(str(found.get("error", answer.status_code)))
    return found
