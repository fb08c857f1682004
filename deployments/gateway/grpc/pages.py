"""The methods that ask about the server and its models: each is one of the HTTP pages, translated.

A request becomes the route and body of the page, and the page's JSON becomes the message: Triton's
messages and its JSON have the same names. Who may read what, the page decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf import json_format

from deployments.gateway.grpc import messages
from deployments.gateway.grpc.generation import INPUTS, OUTPUT
from deployments.gateway.http.request_head import Route


class PageMethod(NamedTuple):
    """`route`: to the page; `body`: of its request; `answer`: the message's fields, of the
    page's status and JSON."""

    request: Any
    response: Any
    verb: str
    route: Callable[[Any], Route]
    answer: Callable[[int, Any], dict[str, Any]]
    body: Callable[[Any], bytes] = lambda _: b""

    def message(self, status: int, page: bytes) -> bytes:
        """The page as the method's message, serialised."""
        fields = self.answer(status, json.loads(page))
        made = json_format.ParseDict(fields, self.response(), ignore_unknown_fields=True)
        serialised: bytes = made.SerializeToString()
        return serialised


def _of_model(endpoint: str) -> Callable[[Any], Route]:
    return lambda request: Route(endpoint, (), request.name, request.version or None)


def _of_region(endpoint: str) -> Callable[[Any], Route]:
    return lambda request: Route(endpoint, (), region=request.name)


def _statistics(request: Any) -> Route:
    if request.name:
        return _of_model("model_statistics")(request)
    return Route("all_statistics", ())


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


def _method(name: str, page: Any, answer: Any = _as_it_is, verb: str = "GET", **more: Any) -> Any:
    request, response = (messages.message(f"inference.{name}{each}") for each in _ENDS)
    route = page if callable(page) else lambda _: Route(page, ())
    return PageMethod(request, response, verb, route, answer, **more)


_ENDS = ("Request", "Response")
PAGES: dict[str, PageMethod] = {
    "ServerLive": _method("ServerLive", "live"),
    "ServerReady": _method("ServerReady", "ready", lambda status, _: {"ready": status == 200}),
    "ModelReady": _method(
        "ModelReady", _of_model("model_ready"), lambda status, _: {"ready": status == 200}
    ),
    "ServerMetadata": _method("ServerMetadata", "server_metadata"),
    "ModelMetadata": _method("ModelMetadata", _of_model("model_metadata"), _metadata),
    "ModelConfig": _method("ModelConfig", _of_model("model_config"), _config),
    "ModelStatistics": _method("ModelStatistics", _statistics),
    "RepositoryIndex": _method(
        "RepositoryIndex",
        "repository_index",
        lambda _, page: {"models": page},
        "POST",
        body=lambda request: json.dumps({"ready": request.ready}).encode(),
    ),
    "SystemSharedMemoryStatus": _method(
        "SystemSharedMemoryStatus",
        _of_region("region_status"),
        lambda _, page: {"regions": {each["name"]: each for each in page}},
    ),
    "SystemSharedMemoryRegister": _method(
        "SystemSharedMemoryRegister",
        _of_region("region_register"),
        lambda *_: {},
        "POST",
        body=lambda request: json.dumps(
            {"key": request.key, "offset": request.offset, "byte_size": request.byte_size}
        ).encode(),
    ),
    "SystemSharedMemoryUnregister": _method(
        "SystemSharedMemoryUnregister", _of_region("region_unregister"), lambda *_: {}, "POST"
    ),
}
"""By the method's name in `inference.GRPCInferenceService`."""
