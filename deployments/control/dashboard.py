"""A Ray cluster's dashboard over HTTP: access for processes outside the cluster.

Address and token are found where Ray's own command line finds them. Nothing here imports Ray.
Source: Ray 2.60 `_private/authentication`, `dashboard/http_server_head.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

ADDRESS = "RAY_API_SERVER_ADDRESS"
_DEFAULT_ADDRESS = "http://127.0.0.1:8265"
_TOKEN = "RAY_AUTH_TOKEN"
_TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
_DEFAULT_TOKEN_PATH = Path(".ray", "auth_token")
_ANSWER_S = 30.0
_NOT_RAYS = (404, 405, 501)  # from a server that has other pages
_SHOWN = 2000  # characters of an error's body


class ClusterError(Exception):
    """The cluster did not do what was asked. The message says what to do."""


class NoAnswer(ClusterError):
    """Nobody answered at the dashboard's address, or not in time."""


def address_of(given: str | None, environ: Mapping[str, str] | None = None) -> str:
    """The dashboard's address: `given`, else $RAY_API_SERVER_ADDRESS, else this machine's."""
    found = given or (os.environ if environ is None else environ).get(ADDRESS) or _DEFAULT_ADDRESS
    if not _is_address(found):
        raise ClusterError(
            f"{found!r} is no address of a Ray dashboard; must be http://HOST:8265, as `ray start` "
            "prints it"
        )
    return found.rstrip("/")


def _is_address(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False


def token_of(environ: Mapping[str, str] | None = None, home: Path | None = None) -> str | None:
    """$RAY_AUTH_TOKEN, else the content of the file at $RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token;
    None without any. Raises ClusterError if the named file cannot be read."""
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


class Dashboard:
    """A client of the dashboard at `address`. Every method raises ClusterError, or
    NoAnswer. Methods block, at most for `answer_s`."""

    def __init__(
        self,
        address: str,
        token: str | None,
        *,
        answer_s: float = _ANSWER_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.address = address
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(
            base_url=address, headers=headers, timeout=answer_s, transport=transport
        )

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """The answer, if its status is below 400; otherwise raises."""
        return self._checked(self.answer(method, path, **more), path)

    def lines(self, path: str, query: Mapping[str, Any], *, follow: bool) -> Iterator[str]:
        """The lines of a page, as they arrive; with `follow` however long it takes."""
        connect_s = self._client.timeout.connect
        limit = httpx.Timeout(connect_s, read=None) if follow else httpx.USE_CLIENT_DEFAULT
        try:
            with self._client.stream("GET", path, params=query, timeout=limit) as answer:
                if answer.status_code >= 400:
                    answer.read()
                self._checked(answer, path)
                yield from answer.iter_lines()
        except httpx.HTTPError as error:
            raise self._silence(error) from None

    def _checked(self, answer: httpx.Response, path: str) -> httpx.Response:
        if answer.status_code in (401, 403):
            raise ClusterError(
                f"{self.address} wants the cluster's token: set ${_TOKEN} or ${_TOKEN_PATH}"
            )
        if answer.status_code in _NOT_RAYS or "html" in answer.headers.get("content-type", ""):
            raise ClusterError(self._other(f"answers {path} with {answer.status_code}"))
        if answer.status_code >= 400:
            said = answer.text.strip()[:_SHOWN]
            raise ClusterError(f"Ray refused {path} ({answer.status_code}): {said}")
        return answer

    def answer(self, method: str, path: str, **more: Any) -> httpx.Response:
        """The answer, whatever its status."""
        try:
            return self._client.request(method, path, **more)
        except httpx.HTTPError as error:
            raise self._silence(error) from None

    def _silence(self, error: httpx.HTTPError) -> NoAnswer:
        return NoAnswer(
            f"no Ray dashboard answers at {self.address} ({error}); --address names it, "
            "http://HEAD:8265 unless it was started otherwise"
        )

    def json_of(self, answer: httpx.Response) -> Any:
        """What the answer holds."""
        try:
            return answer.json()
        except ValueError:
            raise ClusterError(self._other(f"answers {answer.request.url.path} in text")) from None

    def _other(self, what: str) -> str:
        return f"{self.address} is not a Ray dashboard: it {what}; a dashboard is http://HEAD:8265"

    def close(self) -> None:
        self._client.close()
