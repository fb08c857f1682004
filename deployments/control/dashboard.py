"""A Ray cluster's dashboard over HTTP: Serve's list of applications, jobs, and what replicas wrote.

For processes outside the cluster. Address and token are found where Ray's own command line finds
them. Every client blocks and raises ClusterError. Nothing here imports Ray.
Source: Ray 2.60 `_private/authentication`, `dashboard/http_server_head.py`, and of
`dashboard/modules` `serve/serve_head.py`, `job/job_head.py`, `state/state_head.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

import httpx

from deployments.contract.app_names import GATEWAY_APP, is_model_app, model_app, model_name
from deployments.contract.rollout.terms import canary_of, is_canary

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


class ServeApplications(Protocol):
    """Serve's applications (`ServeRest`, `ServeController`). Both methods raise ClusterError."""

    def details(self) -> dict[str, Any]:
        """`ServeInstanceDetails`. Its `applications` are empty if Serve does not run."""

    def put(self, config: Mapping[str, Any]) -> None:
        """Put the whole list of applications. Serve deletes what the last list had and this one has
        not. Where and how Serve listens stays as it is."""


def address_of(given: str | None, environ: Mapping[str, str] | None = None) -> str:
    """The dashboard's address: `given`, else $RAY_API_SERVER_ADDRESS, else this machine's."""
    found = given or (os.environ if environ is None else environ).get(ADDRESS) or _DEFAULT_ADDRESS
    try:
        url = urlsplit(found)
        valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ClusterError(
            f"{found!r} is no address of a Ray dashboard; must be http://HOST:8265, as `ray start` "
            "prints it"
        )
    return found.rstrip("/")


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


class RayDashboard:
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


# ---- Serve's list of applications ----------------------------------------------------------------

SERVE_ANSWER_S = 120.0  # the first list that a cluster gets also starts Serve
_SERVE_PATH = "/api/serve/applications/"
_ALIVE_PATH = "/api/ray/version"  # answered by the same process, without Serve's controller
_ALIVE_S = 5.0
_TRIES_S = 0.5


class ServeRest:
    """A client of the interface. Every method blocks and raises ClusterError. `patience_s`: to wait
    for a dashboard that does not answer what only reads: its host starts another. `pause` waits
    between two tries."""

    def __init__(
        self,
        dashboard: RayDashboard,
        patience_s: float = 0.0,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._dashboard = dashboard
        self._patience_s = patience_s
        self._pause = pause

    def details(self) -> dict[str, Any]:
        end = time.monotonic() + self._patience_s
        while True:
            try:
                found: dict[str, Any] = self._dashboard.json_of(self._ask("GET"))
                return found
            except NoAnswer as silence:
                if self._patience_s == 0.0:
                    raise
                if time.monotonic() >= end:
                    if self.answers():
                        raise ClusterError(
                            "Serve's controller says nothing; requests are served meanwhile "
                            f"({silence})"
                        ) from None
                    raise ClusterError(
                        "Ray's dashboard, through which models change, has ended and does not "
                        "start again: dashboard.err and dashboard.log among Ray's logs say why; "
                        "requests are served meanwhile"
                    ) from None
                self._pause(_TRIES_S)

    def put(self, config: Mapping[str, Any]) -> None:
        self._ask("PUT", json=dict(config))

    def _ask(self, method: str, **more: Any) -> httpx.Response:
        return self._dashboard.ask(method, _SERVE_PATH, **more)

    def answers(self) -> bool:
        """Whether the dashboard itself answers, be it without Serve's controller."""
        try:
            self._dashboard.ask("GET", _ALIVE_PATH, timeout=_ALIVE_S)
            return True
        except ClusterError:
            return False


# ---- jobs ----------------------------------------------------------------------------------------

_JOBS_PATH = "/api/jobs/"
_POLL_S = 0.5
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


class JobFailed(ClusterError):
    """A job did not succeed. `output` is what it printed."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class RayJobs:
    """A client of the job interface. Every method blocks and raises ClusterError."""

    def __init__(
        self, dashboard: RayDashboard, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._dashboard, self._pause = dashboard, pause

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._dashboard.close()

    def lets_anybody_in(self) -> bool:
        """Whether the cluster runs jobs for callers without a token."""
        found = self._dashboard.answer("GET", _JOBS_PATH, headers={"Authorization": ""})
        return found.status_code == 200

    def run(self, command: str, timeout_s: float) -> str:
        """Run `command` in a shell on the head node. Returns its output. Raises JobFailed."""
        job = self._json("POST", _JOBS_PATH, json={"entrypoint": command})["submission_id"]
        waited_s = 0.0
        while (status := self._json("GET", f"{_JOBS_PATH}{job}"))["status"] not in _ENDED:
            if waited_s >= timeout_s:
                self._json("POST", f"{_JOBS_PATH}{job}/stop")
                raise JobFailed(f"not done within {timeout_s:g} s")
            self._pause(_POLL_S)
            waited_s += _POLL_S
        output = str(self._json("GET", f"{_JOBS_PATH}{job}/logs")["logs"])
        if status["status"] != "SUCCEEDED":
            raise JobFailed(status.get("message") or "the job did not succeed", output)
        self._json("DELETE", f"{_JOBS_PATH}{job}")
        return output

    def _json(self, method: str, path: str, **body: Any) -> Any:
        """The JSON of the answer."""
        return self._dashboard.json_of(self._dashboard.ask(method, path, **body))


# ---- what replicas wrote -------------------------------------------------------------------------

_LOGS_PATH = "/api/v0/logs"
_ALL_LINES = -1


def replica_actors(details: Mapping[str, Any], model: str) -> dict[str, str]:
    """Actor ids of the model's processes, its canary's included, by the replicas' names. `details`:
    Serve's. Raises ClusterError if the cluster does not have the model."""
    apps = details.get("applications", {})
    mine = [apps[app] for name in (model, canary_of(model)) if (app := model_app(name)) in apps]
    if not mine:
        models = [model_name(app) for app in apps if is_model_app(app)]
        there = ", ".join(sorted(m for m in models if not is_canary(m))) or "none"
        raise ClusterError(f"{model} is no model of that cluster; must be one of: {there}")
    return _actors(mine)


def gateway_actors(details: Mapping[str, Any]) -> dict[str, str]:
    """Actor ids of the gateways, by the replicas' names; `details`: Serve's."""
    apps = details.get("applications", {})
    return _actors([apps[GATEWAY_APP]] if GATEWAY_APP in apps else [])


def _actors(apps: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return {
        replica["replica_id"]: replica["actor_id"]
        for app in apps
        for deployment in app["deployments"].values()
        for replica in deployment["replicas"]
        if replica.get("actor_id")
    }


def replica_log(
    dashboard: RayDashboard, actor: str, tail: int | None, *, follow: bool
) -> Iterator[str]:
    """The lines that the actor's process wrote to its standard error; `tail`: the last so many.
    With `follow` goes on as they are written. Raises ClusterError."""
    query = {"actor_id": actor, "suffix": "err", "lines": tail or _ALL_LINES}
    yield from dashboard.lines(
        f"{_LOGS_PATH}/{'stream' if follow else 'file'}", query, follow=follow
    )
