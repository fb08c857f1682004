"""Ray Serve's REST interface of one cluster: what runs there, and another list of applications.

The address and the token are found as Ray's own command line finds them. Source: Ray 2.60
`dashboard/modules/serve/serve_head.py`, `_private/authentication`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

ADDRESS = "RAY_API_SERVER_ADDRESS"
_DEFAULT_ADDRESS = "http://127.0.0.1:8265"
_TOKEN = "RAY_AUTH_TOKEN"
_TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
_DEFAULT_TOKEN_PATH = Path(".ray", "auth_token")
_PATH = "/api/serve/applications/"
_ANSWER_S = 120.0  # the first list that a cluster gets also starts Serve
_SHOWN = 2000


class ClusterError(Exception):
    """The cluster does not do what was asked; the message says what to do."""


def address_of(given: str | None, environ: Mapping[str, str] | None = None) -> str:
    """The dashboard's address: the one given, $RAY_API_SERVER_ADDRESS, or this machine's."""
    found = given or (os.environ if environ is None else environ).get(ADDRESS) or _DEFAULT_ADDRESS
    if not found.startswith(("http://", "https://")):
        raise ClusterError(
            f"{found!r} is no address of a Ray dashboard; must be http://HOST:8265, as `ray start` "
            "prints it"
        )
    return found.rstrip("/")


def token_of(environ: Mapping[str, str] | None = None, home: Path | None = None) -> str | None:
    """$RAY_AUTH_TOKEN, or what the file of $RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token holds; None
    without. Raises ClusterError where a file that is named cannot be read."""
    environ = os.environ if environ is None else environ
    if token := environ.get(_TOKEN, "").strip():
        return token
    named = environ.get(_TOKEN_PATH)
    path = Path(named) if named else (home or Path.home()) / _DEFAULT_TOKEN_PATH
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except OSError as error:
        if named is None:
            return None
        raise ClusterError(
            f"{path} (${_TOKEN_PATH}) cannot be read: {error.strerror or error}"
        ) from None


class ServeRest:
    """Every method raises ClusterError. Blocks."""

    def __init__(self, address: str, token: str | None) -> None:
        self._address = address
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(base_url=address, headers=headers, timeout=_ANSWER_S)

    def details(self) -> dict[str, Any]:
        """`ServeInstanceDetails`; its `applications` are empty where Serve does not run."""
        found: dict[str, Any] = self._ask("GET").json()
        return found

    def put(self, config: Mapping[str, Any]) -> None:
        """The whole list of applications: what was put before and is not in it is deleted."""
        self._ask("PUT", json=dict(config))

    def close(self) -> None:
        self._client.close()

    def _ask(self, method: str, **body: Any) -> httpx.Response:
        try:
            answer = self._client.request(method, _PATH, **body)
        except httpx.HTTPError as error:
            raise ClusterError(
                f"no Ray dashboard answers at {self._address} ({error}); --address names it, "
                "http://HEAD:8265 unless it was started otherwise"
            ) from None
        if answer.status_code in (401, 403):
            raise ClusterError(
                f"{self._address} wants the cluster's token: set ${_TOKEN} or ${_TOKEN_PATH}"
            )
        if answer.status_code != 200:
            said = answer.text.strip()[:_SHOWN]
            raise ClusterError(f"Ray Serve refused ({answer.status_code}): {said}")
        return answer
