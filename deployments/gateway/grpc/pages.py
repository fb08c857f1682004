"""The methods that ask about the server and its models: each is one of the HTTP pages, translated.

A request becomes the path and body of the page, and the page's JSON becomes the message: Triton's
messages and its JSON have the same names. Who may read what, the page decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

from google.protobuf import json_format

from deployments.gateway.grpc import messages
from deployments.gateway.grpc.generation import INPUTS, OUTPUT


class PageMethod(NamedTuple):
    """`path`: of the request's page; `body`: of its request; `answer`: the message's fields, of the
    page's status and JSON."""

    request: Any
    response: Any
    verb: str
    path: Callable[[Any], str]
    answer: Callable[[int, Any], dict[str, Any]]
    body: Callable[[Any], bytes] = lambda _: b""

    def message(self, status: int, page: bytes) -> bytes:
        """The page as the method's message, serialised."""
        fields = self.answer(status, json.loads(page))
        made = json_format.ParseDict(fields, self.response(), ignore_unknown_fields=True)
        serialised: bytes = made.SerializeToString()
        return serialised


def _of_model(action: str) -> Callable[[Any], str]:
    def path(request: Any) -> str:
        version = f"/versions/{quote(request.version, safe='')}" if request.version else ""
        return f"/v2/models/{quote(request.name, safe='')}{version}{action}"

    return path


def _of_region(action: str) -> Callable[[Any], str]:
    def path(request: Any) -> str:
        region = f"/region/{quote(request.name, safe='')}" if request.name else ""
        return f"/v2/systemsharedmemory{region}/{action}"

    return path


def _statistics(request: Any) -> str:
    return _of_model("/stats")(request) if request.name else "/v2/models/stats"


def _metadata(status: int, page: Any) -> dict[str, Any]:
    """Of a model that generates, with the tensors that gRPC gives it."""
    if not page["inputs"]:
        texts = [
            {"name": name, "datatype": kind, "shape": [1]} for name, (kind, _) in INPUTS.items()
        ]
        output = {"name": OUTPUT, "datatype": "BYTES", "shape": [-1]}
        return {**page, "inputs": texts, "outputs": [output]}
    return dict(page)


def _config(status: int, page: Any) -> dict[str, Any]:
    """As `_metadata`."""
    if not page["input"]:
        texts = [
            {
                "name": name,
                "data_type": f"TYPE_{kind}",
                "dims": [1],
                "optional": name != "text_input",
            }
            for name, (_, kind) in INPUTS.items()
        ]
        output = {"name": OUTPUT, "data_type": "TYPE_STRING", "dims": [-1]}
        page = {**page, "input": texts, "output": [output]}
    return {"config": page}


def _as_it_is(status: int, page: Any) -> dict[str, Any]:
    return dict(page)


def _method(name: str, path: Any, answer: Any = _as_it_is, verb: str = "GET", **more: Any) -> Any:
    request, response = (messages.message(f"inference.{name}{each}") for each in _ENDS)
    where = path if callable(path) else lambda _: path
    return PageMethod(request, response, verb, where, answer, **more)


_ENDS = ("Request", "Response")
PAGES: dict[str, PageMethod] = {
    "ServerLive": _method("ServerLive", "/v2/health/live"),
    "ServerReady": _method(
        "ServerReady", "/v2/health/ready", lambda status, _: {"ready": status == 200}
    ),
    "ModelReady": _method(
        "ModelReady", _of_model("/ready"), lambda status, _: {"ready": status == 200}
    ),
    "ServerMetadata": _method("ServerMetadata", "/v2"),
    "ModelMetadata": _method("ModelMetadata", _of_model(""), _metadata),
    "ModelConfig": _method("ModelConfig", _of_model("/config"), _config),
    "ModelStatistics": _method("ModelStatistics", _statistics),
    "RepositoryIndex": _method(
        "RepositoryIndex",
        "/v2/repository/index",
        lambda _, page: {"models": page},
        "POST",
        body=lambda request: json.dumps({"ready": request.ready}).encode(),
    ),
    "SystemSharedMemoryStatus": _method(
        "SystemSharedMemoryStatus",
        _of_region("status"),
        lambda _, page: {"regions": {each["name"]: each for each in page}},
    ),
    "SystemSharedMemoryRegister": _method(
        "SystemSharedMemoryRegister",
        _of_region("register"),
        lambda *_: {},
        "POST",
        body=lambda request: json.dumps(
            {"key": request.key, "offset": request.offset, "byte_size": request.byte_size}
        ).encode(),
    ),
    "SystemSharedMemoryUnregister": _method(
        "SystemSharedMemoryUnregister", _of_region("unregister"), lambda *_: {}, "POST"
    ),
}
"""By the method's name in `inference.GRPCInferenceService`."""
