"""Reads from the Kubernetes API, with the caller's kubeconfig or, in a pod, its service account.

Returns objects as plain dicts. Every failure becomes a `KubernetesError`: one sentence that says
what to do. PyPI's `kubernetes` is an optional dependency, so this module imports the package only
when it connects.

Each request has the timeouts of `_TIMEOUTS_S` and is not retried. This module only reads: it lists
rayservices, rayclusters, pods, events and persistentvolumeclaims, and gets pods/log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from deployments.tools.kube import release
from deployments.tools.kube.types import Object, Snapshot, name_of

_TIMEOUTS_S = (5.0, 20.0)  # to connect, to read
_FOLLOW_READ_S = 86_400.0  # the longest pause between two lines of a log that is followed
_PAGE = 500  # objects in one response to a list request
_GROUP, _VERSION = "ray.io", "v1"


class KubernetesError(Exception):
    """The Kubernetes API could not be read; the message says what to do."""


class Forbidden(KubernetesError):
    """The caller lacks the rights for one request; the message names them."""


class Kubernetes:
    """One namespace of one cluster. The constructor and every method raise KubernetesError."""

    def __init__(self, context: str | None, namespace: str | None) -> None:
        self._client, configuration, own = _connect(context)
        self.namespace = namespace or own or "default"
        self._api = self._client.ApiClient(configuration)
        self._server = configuration.host

    def snapshot(self, name: str | None) -> Snapshot:
        """The objects of the release `name`; None stands for the namespace's only release.

        Without the right to list rayclusters, events or persistentvolumeclaims, the snapshot lacks
        them and says so in `unread`.
        """
        service = self._service(name)
        unread: list[str] = []
        core = self._client.CoreV1Api(self._api)
        pods = self._all("list", "pods", core.list_namespaced_pod)
        warnings = partial(core.list_namespaced_event, field_selector="type=Warning")
        claims = core.list_namespaced_persistent_volume_claim
        return Snapshot(
            service=service,
            clusters=self._clusters(service, unread),
            pods=[pod for pod in pods if release.belongs(pod, service)],
            events=self._optional("events", warnings, unread),
            claims=self._optional("persistentvolumeclaims", claims, unread),
            unread=tuple(unread),
        )

    def log(self, pod: str, container: str, **options: Any) -> Iterator[bytes]:
        """Yields a container's log lines as they arrive, each behind its timestamp.

        `options` are those of the client's `read_namespaced_pod_log`.
        """
        core = self._client.CoreV1Api(self._api)
        connect, read = _TIMEOUTS_S
        timeouts = (connect, _FOLLOW_READ_S if options.get("follow") else read)
        with self._explained("get", f"pods/log of {pod}"):
            answer = core.read_namespaced_pod_log(
                pod, self.namespace, container=container, timestamps=True,
                _preload_content=False, _request_timeout=timeouts, **options,
            )  # fmt: skip
            yield from _lines(answer)

    def _service(self, name: str | None) -> Object:
        found = self._all("list", "rayservices", partial(self._list_custom, "rayservices"))
        return chosen(found, name, self.namespace)

    def _clusters(self, service: Object, unread: list[str]) -> dict[str, Object]:
        """The service's RayClusters that exist, by name; empty if the caller may not list them."""
        found = self._optional("rayclusters", partial(self._list_custom, "rayclusters"), unread)
        names = release.clusters_of(service)
        return {name_of(each): each for each in found if name_of(each) in names}

    def _list_custom(self, plural: str, namespace: str, **more: Any) -> Any:
        custom = self._client.CustomObjectsApi(self._api)
        return custom.list_namespaced_custom_object(_GROUP, _VERSION, namespace, plural, **more)

    def _all(self, verb: str, what: str, ask: Callable[..., Any]) -> list[Object]:
        """All objects of a list request, over as many pages as the API server makes."""
        found: list[Object] = []
        more: dict[str, Any] = {}
        while True:
            with self._explained(verb, what):
                answer = ask(
                    self.namespace, limit=_PAGE, _preload_content=False,
                    _request_timeout=_TIMEOUTS_S, **more,
                )  # fmt: skip
                page = self._page(answer.data)
            found += page.get("items") or []
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return found
            more = {"_continue": token}

    def _page(self, data: bytes) -> Object:
        """Parses one response. A proxy in between may answer 200 with an HTML page of its own."""
        try:
            page = json.loads(data)
        except ValueError:
            page = None
        if not isinstance(page, dict):
            raise KubernetesError(
                f"the answer of {self._server} is not one of the Kubernetes API; is there a proxy "
                "in between that wants you to log in?"
            )
        return page

    def _optional(self, what: str, ask: Callable[..., Any], unread: list[str]) -> list[Object]:
        """Like `_all`, for objects that the table can do without: a missing right is noted in
        `unread`, and the list is empty."""
        try:
            return self._all("list", what, ask)
        except Forbidden as error:
            unread.append(str(error))
            return []

    @contextmanager
    def _explained(self, verb: str, what: str) -> Iterator[None]:
        import urllib3

        try:
            yield
        except self._client.ApiException as error:
            raise self._refused(error, verb, what) from None
        except urllib3.exceptions.HTTPError as error:
            reason = getattr(error, "reason", None) or error
            raise KubernetesError(
                f"{self._server} does not answer ({_last(reason)}); is the cluster up, and is this "
                "the context you mean? `kubectl config current-context`"
            ) from None

    def _refused(self, error: Any, verb: str, what: str) -> KubernetesError:
        said = _message(error)
        if error.status == 401:
            return KubernetesError(f"{self._server} rejects your credentials: {said}; log in again")
        if error.status == 403:
            return Forbidden(
                f"you may not {verb} {what} in the namespace {self.namespace}: {said}; a Role "
                f"there must allow it (docs/kubernetes.md, What runs, and what waits)"
            )
        if error.status == 404 and what == "rayservices":
            return KubernetesError(
                f"{self._server} has no resource type RayService: install KubeRay there"
            )
        return KubernetesError(f"{self._server}, {verb} {what}: {error.status} {said}")


def chosen(services: list[Object], name: str | None, namespace: str) -> Object:
    """The RayService whose own name or whose release's name is `name`; with None, the only one.

    Raises KubernetesError if there is none, or more than one.
    """
    of_name = [each for each in services if name is None or name in _names(each)]
    if len(of_name) == 1:
        return of_name[0]
    there = ", ".join(name_of(each) for each in services) or "none"
    if not of_name:
        wanted = "a RayService" if name is None else f"the release {name}"
        raise KubernetesError(
            f"the namespace {namespace} does not contain {wanted} (it contains: {there}); "
            "-n chooses a namespace, `helm list -A` shows releases"
        )
    raise KubernetesError(
        f"the namespace {namespace} contains several releases: {there}; name one of them"
    )


def _names(service: Object) -> tuple[str, str]:
    labels: Mapping[str, str] = service["metadata"].get("labels") or {}
    return name_of(service), labels.get("app.kubernetes.io/instance", "")


def _connect(context: str | None) -> tuple[Any, Any, str | None]:
    """The client's module, its configuration, and the namespace that the context names, if any."""
    try:
        from kubernetes import client, config
    except ImportError:
        raise KubernetesError(
            "this command needs the package kubernetes: pip install 'headrace[k8s]'"
        ) from None
    configuration = client.Configuration()
    path = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    inside = "KUBERNETES_SERVICE_HOST" in os.environ and context is None
    try:
        if inside and not any(Path(each).is_file() for each in path.split(os.pathsep)):
            config.load_incluster_config(client_configuration=configuration)
            own = None
        else:
            config.load_kube_config(path, context, configuration, persist_config=False)
            own = _own_namespace(config, path, context)
    except Exception as error:
        raise KubernetesError(_unreadable(path, context, error)) from None
    configuration.retries = 0
    return client, configuration, own


def _own_namespace(config: Any, path: str, context: str | None) -> str | None:
    contexts, active = config.list_kube_config_contexts(path)
    found = next((each for each in contexts if each["name"] == context), active)
    namespace: str | None = found["context"].get("namespace")
    return namespace


def _unreadable(path: str, context: str | None, error: Exception) -> str:
    if "No configuration found" in str(error):
        return f"no kubeconfig at {path}; $KUBECONFIG names another one"
    if context is not None and f"name {context} " in str(error):
        return f"the kubeconfig {path} has no context {context}; `kubectl config get-contexts`"
    if isinstance(error, (AttributeError, KeyError, TypeError)):
        return (
            f"{path} is no kubeconfig: it must be a mapping with clusters, contexts and users; "
            "`kubectl config view` shows one, $KUBECONFIG names another"
        )
    return f"the kubeconfig {path} cannot be used: {_last(error)}"


def _message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)


def _last(error: Any) -> str:
    return " ".join(str(error).split())


def _lines(answer: Any) -> Iterator[bytes]:
    """Yields a response's lines as they arrive; the last line may lack its newline."""
    rest = b""
    try:
        for chunk in answer.stream(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
        if rest:
            yield rest
    finally:
        answer.close()
