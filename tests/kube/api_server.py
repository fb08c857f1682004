"""A Kubernetes API server that only stores objects, for Helm's own engine to install into.

It knows the kinds that the chart makes and the calls that Helm makes: discovery, get, list, watch,
create, server-side apply (one manager, so an apply replaces), merge patches and delete. Of a claim
it changes what Kubernetes changes. A Job whose
name ends in `-check` is run: its ConfigMap goes through the settings' own loader, as
`headrace check --elsewhere` does; another Job is noted and succeeds, and so does a Pod without a
status. Nothing is scheduled.
"""

from __future__ import annotations

import copy
import itertools
import json
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from deployments.process.sockets import ChannelTls
from deployments.settings.plain import SettingsErrors
from deployments.settings_files.load import load
from tests.kube.chart import LOADER, Object

_KINDS = {
    "v1": {
        "configmaps": "ConfigMap", "namespaces": "Namespace", "pods": "Pod", "secrets": "Secret",
        "serviceaccounts": "ServiceAccount", "persistentvolumeclaims": "PersistentVolumeClaim",
        "events": "Event", "services": "Service",
    },
    "apps/v1": {"daemonsets": "DaemonSet"},
    "batch/v1": {"jobs": "Job"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy", "ingresses": "Ingress"},
    "resource.k8s.io/v1": {"resourceclaimtemplates": "ResourceClaimTemplate"},
    "rbac.authorization.k8s.io/v1": {"roles": "Role", "rolebindings": "RoleBinding"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "ray.io/v1": {"rayservices": "RayService", "rayclusters": "RayCluster"},
    "gateway.networking.k8s.io/v1": {"httproutes": "HTTPRoute", "grpcroutes": "GRPCRoute"},
    "monitoring.coreos.com/v1": {"podmonitors": "PodMonitor"},
}  # fmt: skip
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
_POLL_S = 0.02

Key = tuple[str, str, str, str]  # apiVersion, plural, namespace, name


class Store:
    """Objects by key; every change has a number."""

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.events: list[tuple[int, str, Key, Object]] = []
        self.version = "v1.36.0"
        self.jobs: list[str] = []
        self.credentials: set[str] = set()
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)

    def of_kind(self, kind: str) -> dict[str, Object]:
        """By name."""
        return {key[3]: each for key, each in self.objects.items() if each["kind"] == kind}

    def put(self, key: Key, written: Object) -> Object:
        with self._lock:
            old = self.objects.get(key)
            number = next(self._numbers)
            metadata = {
                "uid": old["metadata"]["uid"] if old else f"uid-{number}",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                **written["metadata"],
                "namespace": key[2],
                "resourceVersion": str(number),
            }
            new = {**written, "metadata": metadata} | self._status(written)
            self.objects[key] = new
            self.events.append((number, "MODIFIED" if old else "ADDED", key, new))
            return new

    def delete(self, key: Key) -> Object:
        with self._lock:
            old = self.objects.pop(key)
            number = next(self._numbers)
            gone = {**old, "metadata": old["metadata"] | {"resourceVersion": str(number)}}
            self.events.append((number, "DELETED", key, gone))
            return gone

    def _status(self, written: Object) -> Object:
        if written["kind"] == "Pod":
            return {"status": written.get("status", {"phase": "Succeeded"})}
        if written["kind"] != "Job":
            return {}
        name = written["metadata"]["name"]
        said = self._checked(written) if name.endswith("-check") else ""
        self.jobs.append(name)
        kind = "Failed" if said else "Complete"
        condition = {"type": kind, "status": "True", "reason": kind, "message": said}
        count = {"failed": 1} if said else {"succeeded": 1}
        return {"status": {**count, "conditions": [condition]}}

    def _checked(self, job: Object) -> str:
        """What `headrace check` says is wrong."""
        (name,) = (
            volume["configMap"]["name"]
            for volume in job["spec"]["template"]["spec"]["volumes"]
            if "configMap" in volume
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "settings.yaml"
            path.write_text(self.of_kind("ConfigMap")[name]["data"]["settings.yaml"])
            try:
                load(path, here=False)
            except SettingsErrors as errors:
                return str(errors)
        return ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store
    stopping: threading.Event

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        path, query = self._asked()
        found = _discovery(path, self.store.version)
        if found is not None:
            self._answer(200, found)
            return
        api_version, plural, _, name = key = _key(path)
        if plural not in _KINDS.get(api_version, {}):
            self._missing(path)
        elif name:
            each = self.store.objects.get(key)
            self._missing(path) if each is None else self._answer(200, each)
        elif query.get("watch") in (["true"], ["1"]):
            self._watch(key, query)
        else:
            self._list(key, query)

    def do_POST(self) -> None:
        path, _ = self._asked()
        written = self._body()
        key = (*_key(path)[:3], written["metadata"]["name"])
        if key in self.store.objects:
            self._answer(409, _status(409, "AlreadyExists", f"{key[3]} already exists"))
        else:
            self._answer(201, self.store.put(key, written))

    def do_PATCH(self) -> None:
        path, _ = self._asked()
        key, written = _key(path), self._body()
        old = self.store.objects.get(key)
        if "apply-patch" in self.headers["content-type"]:
            self._put(key, written, 200 if old else 201)
        elif old is None:
            self._missing(path)
        elif "json-patch" in self.headers["content-type"]:
            self._json_patch(key, old, written)
        else:
            self._put(key, _merged(old, written))

    def _json_patch(self, key: Key, old: Object, changes: list[Object]) -> None:
        new = copy.deepcopy(old)
        try:
            json_patch(new, changes)
        except LookupError as refused:
            self._answer(422, _status(422, "Invalid", str(refused)))
        else:
            self._put(key, new)

    def do_PUT(self) -> None:
        path, _ = self._asked()
        self._put(_key(path), self._body())

    def _put(self, key: Key, written: Object, code: int = 200) -> None:
        said = claim_refusal(self.store.objects.get(key), written)
        if said:
            self._answer(422, _status(422, "Invalid", said))
        else:
            self._answer(code, self.store.put(key, written))

    def do_DELETE(self) -> None:
        path, _ = self._asked()
        self._body()
        key = _key(path)
        if key in self.store.objects:
            self._answer(200, self.store.delete(key))
        else:
            self._missing(path)

    def _list(self, key: Key, query: dict[str, list[str]]) -> None:
        items = [o for k, o in self.store.objects.items() if _concerns(k, o, key, query)]
        metadata = {"resourceVersion": str(self.store.events[-1][0] if self.store.events else 0)}
        kind = _KINDS[key[0]][key[1]]
        listed = {"apiVersion": key[0], "kind": f"{kind}List", "items": items}
        self._answer(200, listed | {"metadata": metadata})

    def _watch(self, key: Key, query: dict[str, list[str]]) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        seen = int(query.get("resourceVersion", ["0"])[0] or 0)
        end = time.monotonic() + int(query.get("timeoutSeconds", ["60"])[0])
        try:
            if query.get("sendInitialEvents") == ["true"]:
                seen = self._tell_what_is_there(key, query)
            while time.monotonic() < end and not self.stopping.is_set():
                for number, event, at, each in list(self.store.events):
                    if number > seen:
                        seen = number
                        if _concerns(at, each, key, query):
                            self._tell(event, each)
                time.sleep(_POLL_S)
        except OSError:
            return  # who watched has gone

    def _tell_what_is_there(self, key: Key, query: dict[str, list[str]]) -> int:
        """Then says that this was all; the number up to which it was."""
        number = self.store.events[-1][0] if self.store.events else 0
        for at, each in list(self.store.objects.items()):
            if _concerns(at, each, key, query):
                self._tell("ADDED", each)
        ends = {"k8s.io/initial-events-end": "true"}
        metadata = {"resourceVersion": str(number), "annotations": ends}
        kind = {"apiVersion": key[0], "kind": _KINDS[key[0]][key[1]]}
        self._tell("BOOKMARK", kind | {"metadata": metadata})
        return number

    def _tell(self, event: str, each: Object) -> None:
        self.wfile.write((json.dumps({"type": event, "object": each}) + "\n").encode())
        self.wfile.flush()

    def _asked(self) -> tuple[str, dict[str, list[str]]]:
        self.store.credentials.add(self.headers.get("authorization", ""))
        parts = urlsplit(self.path)
        return parts.path.rstrip("/"), parse_qs(parts.query)

    def _body(self) -> Any:
        return yaml.load(self.rfile.read(int(self.headers.get("content-length", 0))), LOADER)

    def _missing(self, path: str) -> None:
        self._answer(404, _status(404, "NotFound", f"{path} not found"))

    def _answer(self, code: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def claim_refusal(old: Object | None, new: Object) -> str:
    """Why Kubernetes refuses to change a claim so, "" if it does not: its size may grow."""
    if old is None or new["kind"] != "PersistentVolumeClaim":
        return ""
    name, before, after = new["metadata"]["name"], dict(old["spec"]), dict(new["spec"])
    was, size = (_gib(each.pop("resources")["requests"]["storage"]) for each in (before, after))
    if before != after:
        return f"{name}: spec is immutable after creation except resources.requests"
    return f"{name}: field can not be less than status.capacity" if size < was else ""


def _gib(size: str) -> float:
    return int(size[:-2]) * {"Mi": 1 / 1024, "Gi": 1}[size[-2:]]


def _key(path: str) -> Key:
    """Of /api/v1/namespaces/N/PLURAL/NAME, /apis/GROUP/VERSION/…; "" for what a path leaves out."""
    parts = path.strip("/").split("/")
    api_version, rest = (
        (parts[1], parts[2:]) if parts[0] == "api" else ("/".join(parts[1:3]), parts[3:])
    )
    namespace = ""
    if rest and rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    plural, name = [*rest, "", ""][:2]
    return api_version, plural, namespace, name


def _concerns(at: Key, each: Object, asked: Key, query: dict[str, list[str]]) -> bool:
    if at[:2] != asked[:2] or (asked[2] and at[2] != asked[2]):
        return False
    if any(field != f"metadata.name={at[3]}" for field in query.get("fieldSelector", ())):
        return False
    labels = each["metadata"].get("labels", {})
    pairs = [p.split("=") for s in query.get("labelSelector", ()) for p in s.split(",") if "=" in p]
    return all(labels.get(pair[0]) == pair[-1] for pair in pairs)


def _discovery(path: str, version: str) -> Any:
    if path == "/version":
        return {"major": "1", "minor": version.split(".")[1], "gitVersion": version}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = [_group(api_version) for api_version in _KINDS if "/" in api_version]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if path == "/openapi/v3":
        return {
            "paths": {
                _root(each): {"serverRelativeURL": f"/openapi/v3/{_root(each)}"} for each in _KINDS
            }
        }
    if path.startswith("/openapi/v3/"):
        return _open_api(path.removeprefix("/openapi/v3/"))
    api_version = path.removeprefix("/apis/").removeprefix("/api/")
    if api_version not in _KINDS:
        return None
    resources = [
        {
            "name": plural, "singularName": kind.lower(), "kind": kind, "verbs": _VERBS,
            "namespaced": kind != "Namespace",
        }
        for plural, kind in _KINDS[api_version].items()
    ]  # fmt: skip
    return {"kind": "APIResourceList", "groupVersion": api_version, "resources": resources}


def _root(api_version: str) -> str:
    return f"apis/{api_version}" if "/" in api_version else f"api/{api_version}"


def _open_api(root: str) -> Object:
    """As much as tells Helm that the server looks at fields itself."""
    api_version = root.split("/", 1)[1]
    group, _, version = api_version.rpartition("/")
    paths = {
        f"/{root}/namespaces/{{namespace}}/{plural}/{{name}}": {
            "patch": {
                "x-kubernetes-group-version-kind": {
                    "group": group,
                    "version": version,
                    "kind": kind,
                },
                "parameters": [{"name": "fieldValidation", "in": "query"}],
                "responses": {},
            }
        }
        for plural, kind in _KINDS[api_version].items()
    }
    info = {"title": "Kubernetes", "version": "v1.36.0"}
    return {"openapi": "3.0.0", "info": info, "paths": paths}


def _group(api_version: str) -> Object:
    name, version = api_version.split("/")
    only = {"groupVersion": api_version, "version": version}
    return {"name": name, "versions": [only], "preferredVersion": only}


def _merged(old: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    kept = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            kept.pop(name, None)
        else:
            kept[name] = _merged(kept.get(name), value)
    return kept


def json_patch(found: Any, changes: list[Object]) -> None:
    """RFC 6902, as much as the chart's job asks for: `test`, `remove`, and `add` to a mapping.
    LookupError for what is not as it is said to be."""
    for each in changes:
        *path, last = each["path"].strip("/").split("/")
        there = found
        for part in path:
            there = there[int(part)] if isinstance(there, list) else there[part]
        if each["op"] == "test" and there.get(last) != each["value"]:
            raise LookupError(f"{each['path']} is {there.get(last)}")
        if each["op"] == "remove":
            del there[last]
        elif each["op"] == "add":
            there[last] = each["value"]


def _status(code: int, reason: str, message: str) -> Object:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return body | {"code": code, "reason": reason, "message": message}


@contextmanager
def api_server(tls: ChannelTls | None = None) -> Iterator[tuple[str, Store]]:
    """Its URL and what it stores."""
    store, stopping = Store(), threading.Event()
    handler = type("Handler", (_Handler,), {"store": store, "stopping": stopping})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls.certificate, tls.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}", store
    finally:
        stopping.set()
        server.shutdown()
        thread.join()
