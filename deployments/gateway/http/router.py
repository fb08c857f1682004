"""The table of paths and their endpoints, matched without regular expressions.

Paths: the Open Inference Protocol's (`/v2/...`), `:predict` and `:classify`, OpenAI's (`/v1/...`),
and the operator's (`/metrics`, `/healthz`, `/readyz`, `/admin/...`, `/openapi.json`, `/docs` and
the files it shows itself with). Names of models may hold dots and dashes, never slashes.

Paths are matched as they were sent. HAProxy's rules read them so, and what it did not see as an
operator's path is none here: only names, and the colon before an action, may be percent-encoded.
Source: RFC 3986 §2.4, §6.2.2.2.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote


class Route(NamedTuple):
    """`endpoint`: what to call; `methods`: what it takes; the others: parts of the path."""

    endpoint: str
    methods: tuple[str, ...]
    model: str | None = None
    version: str | None = None
    adapter: str = ""


_FIXED = {
    "/v1/embeddings": Route("embeddings", ("POST",)),
    "/v1/completions": Route("completions", ("POST",)),
    "/v1/chat/completions": Route("chat", ("POST",)),
    "/v1/models": Route("openai_models", ("GET", "HEAD")),
    "/v2": Route("server_metadata", ("GET", "HEAD")),
    "/v2/health/live": Route("live", ("GET", "HEAD")),
    "/v2/health/ready": Route("ready", ("GET", "HEAD")),
    # As in Triton; a model of that name has its metadata below its version.
    "/v2/models/stats": Route("all_statistics", ("GET", "HEAD")),
    "/v2/repository/index": Route("repository_index", ("POST",)),
    "/metrics": Route("metrics", ("GET", "HEAD")),
    "/healthz": Route("live", ("GET", "HEAD")),
    "/readyz": Route("ready", ("GET", "HEAD")),
    "/admin/status": Route("admin_status", ("GET",)),
    "/admin/controllers": Route("admin_controllers", ("PUT",)),
    "/admin/keys": Route("admin_keys", ("GET",)),
    "/admin/keys/revoke": Route("admin_revoke", ("POST",)),
    "/openapi.json": Route("openapi", ("GET", "HEAD")),
    "/docs": Route("docs", ("GET", "HEAD")),
    "/docs/swagger-ui.css": Route("docs_file", ("GET", "HEAD")),
    "/docs/swagger-ui-bundle.js": Route("docs_file", ("GET", "HEAD")),
    "/docs/favicon.png": Route("docs_file", ("GET", "HEAD")),
}
_ACTIONS = {
    "": ("model_metadata", ("GET", "HEAD")),
    "infer": ("infer", ("POST",)),
    "ready": ("model_ready", ("GET", "HEAD")),
    "config": ("model_config", ("GET", "HEAD")),
    "stats": ("model_statistics", ("GET", "HEAD")),
}
_V1_ACTIONS = ("predict", "classify")


_LONGEST_KEPT = 256


def match(path: str) -> Route | None:
    """The route of a path as it was sent, None when it has none. Callers choose paths: long ones
    are not kept."""
    return _kept(path) if len(path) <= _LONGEST_KEPT else _match(path)


@lru_cache(maxsize=1024)
def _kept(path: str) -> Route | None:
    return _match(path)


def _match(path: str) -> Route | None:
    fixed = _FIXED.get(path)
    if fixed is not None:
        return fixed
    if path.startswith("/v2/models/"):
        return _v2(path[len("/v2/models/") :].split("/"))
    if path.startswith("/v1/models/"):
        return _v1(path[len("/v1/models/") :])
    return None


def _v2(parts: list[str]) -> Route | None:
    name, rest = unquote(parts[0]), parts[1:]
    version = None
    if len(rest) >= 2 and rest[0] == "versions":
        version, rest = unquote(rest[1]), rest[2:]
    action = _ACTIONS.get(rest[0] if rest else "") if len(rest) <= 1 else None
    if not name or "/" in name or action is None or version == "":
        return None
    return Route(action[0], action[1], name, version)


def _v1(rest: str) -> Route | None:
    name, colon, action = unquote(rest).partition(":")
    if not name or "/" in name:
        return None
    if action in _V1_ACTIONS:
        return Route(action, ("POST",), name)
    if "/" in action or ":" in action or (colon and not action):
        return None
    return Route("openai_model", ("GET", "HEAD"), name, adapter=action)
