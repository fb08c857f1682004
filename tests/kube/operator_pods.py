"""The pods that KubeRay's operator makes of a RayService: what a kubelet is told to run.

The chart writes templates; the operator adds the whole `ray start` line, environment, an init
container and probes. Not written anew, because the chart asks for none of it by default; it is
refused here in a sentence: Redis, TLS, the history server, groups of several hosts, top-level
`resources` of groups, a command of the container's own. Of the autoscaler's container only what its
being there changes for Ray's.
Source: kuberay v1.7, `common/pod.go` (DefaultHeadPodTemplate, DefaultWorkerPodTemplate, BuildPod,
setMissingRayStartParams, generateRayStartCommand, convertParamMap, setContainerEnvVars,
initLivenessAndReadinessProbe), `utils/constant.go`.
"""

from __future__ import annotations

import copy
from typing import Any

from tests.kube.chart import Object

KUBERAY = "v1.7.0"
AGENT_PORT, GCS_PORT, METRICS_PORT = 52365, 6379, 8080
TOKEN_KEY = "auth_token"
_WGET = "wget --tries 1 -T {} -q -O- http://localhost:{}/{} | grep success"
_WITH_A_VALUE = ("log-color", "include-dashboard", "include-log-monitor")
_NOT_HERE = ("gcsFaultToleranceOptions", "tlsOptions", "historyServerOptions")
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9}
_WAIT_FOR_HEAD = "until ray health-check --address {}:{} > /dev/null 2>&1; do sleep 5; done"


class NotWrittenAnew(Exception):
    """The RayService asks the operator for something that is not repeated here."""


def head_service(cluster_name: str) -> str:
    """The head's Service, whose name the workers' address is made of."""
    return f"{cluster_name}-head-svc"


def serve_service(service: Object) -> str:
    """The Service that callers reach, whichever cluster it leads to."""
    return f"{service['metadata']['name']}-serve-svc"


def head_name(service: Object, cluster_name: str) -> str:
    """By which workers find the head, as the cluster's DNS knows it."""
    namespace = service["metadata"]["namespace"]
    return f"{head_service(cluster_name)}.{namespace}.svc.cluster.local"


def head_pod(service: Object, cluster_name: str) -> Object:
    cluster = service["spec"]["rayClusterConfig"]
    group = cluster["headGroupSpec"]
    params = {"dashboard-host": "0.0.0.0", **_params(group)}
    if cluster.get("enableInTreeAutoscaling"):
        params["no-monitor"] = "true"
    pod = _Pod(service, cluster_name, group, "head")
    if cluster.get("enableInTreeAutoscaling"):
        pod.env.append({"name": "RAY_enable_autoscaler_v2", "value": "true"})
        pod.shares_logs()
    return pod.built(params, "127.0.0.1")


def worker_pods(service: Object, cluster_name: str) -> list[Object]:
    """As many of each group as its `replicas`, in the groups' order."""
    found = []
    for group in service["spec"]["rayClusterConfig"]["workerGroupSpecs"]:
        head = head_name(service, cluster_name)
        for _ in range(group["replicas"]):
            pod = _Pod(service, cluster_name, group, "worker")
            pod.env.append({"name": "FQ_RAY_IP", "value": head})
            pod.env.append({"name": "RAY_IP", "value": head.partition(".")[0]})
            pod.waits_for(head)
            params = {"address": f"{head}:{GCS_PORT}", **_params(group)}
            found.append(pod.built(params, head, f"-{len(found)}"))
    return found


def ray_start(kind: str, params: dict[str, str], limits: dict[str, str]) -> str:
    """The line that a container runs. `kind`: head or worker; `limits`: the container's."""
    whole = dict(params)
    if "cpu" in limits:
        whole.setdefault("num-cpus", str(-int(-quantity(limits["cpu"]) // 1)))
    if "memory" in limits:
        whole.setdefault("memory", str(int(quantity(limits["memory"]))))
    flags = [_flag(name, whole[name]) for name in sorted(whole)]
    return " ".join(["ray start", *(["--head"] if kind == "head" else []), *filter(None, flags)])


def quantity(written: str | int) -> float:
    """Of a Kubernetes resource."""
    text = str(written)
    if text.endswith("m"):
        return float(text[:-1]) / 1000
    for unit, factor in _UNITS.items():
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    return float(text)


def _flag(name: str, value: str) -> str:
    if value.lower() in ("true", "false") and name not in _WITH_A_VALUE:
        return f"--{name}" if value.lower() == "true" else ""
    return f"--{name}={value}"


def _params(group: Object) -> dict[str, str]:
    if group.get("resources"):
        raise NotWrittenAnew(f"{group.get('groupName', 'head')} has top-level resources")
    found = dict(group["rayStartParams"])
    if group.get("labels"):
        found["labels"] = ",".join(f"{k}={v}" for k, v in sorted(group["labels"].items()))
    found.setdefault("metrics-export-port", str(METRICS_PORT))
    found.setdefault("dashboard-agent-listen-port", str(AGENT_PORT))
    return found | {"block": "true"}


class _Pod:
    """One being built. `kind`: head or worker."""

    def __init__(self, service: Object, cluster_name: str, group: Object, kind: str) -> None:
        cluster = service["spec"]["rayClusterConfig"]
        for field in _NOT_HERE:
            if field in cluster:
                raise NotWrittenAnew(f"{field} is not repeated here")
        self._service, self._cluster, self._name = service, cluster, cluster_name
        self._kind, self._group = kind, group.get("groupName", "headgroup")
        self._template = copy.deepcopy(group["template"])
        self.container = self._template["spec"]["containers"][0]
        if self.container.get("command") or self.container.get("args"):
            raise NotWrittenAnew(f"{self._group} has a command of its own")
        self.env: list[Any] = self.container.setdefault("env", [])

    def waits_for(self, head: str) -> None:
        """Its init container, with the environment and the volumes of the pod as they were."""
        waiting = {
            key: copy.deepcopy(self.container[key])
            for key in ("image", "env", "volumeMounts", "securityContext")
            if key in self.container
        }
        script = _WAIT_FOR_HEAD.format(head, GCS_PORT)
        waiting |= {"name": "wait-gcs-ready", "command": ["/bin/bash", "-c", "--"]}
        waiting["args"] = [script]
        waiting["env"] += self._token()
        self._template["spec"].setdefault("initContainers", []).append(waiting)

    def shares_logs(self) -> None:
        """With the autoscaler's container."""
        self.container.setdefault("volumeMounts", []).append(
            {"name": "ray-logs", "mountPath": "/tmp/ray"}
        )
        volumes = self._template["spec"].setdefault("volumes", [])
        volumes.append({"name": "ray-logs", "emptyDir": {}})

    def built(self, params: dict[str, str], head: str, suffix: str = "") -> Object:
        limits = self.container.get("resources", {}).get("limits", {})
        line = ray_start(self._kind, params, limits)
        self.container["command"] = ["/bin/bash", "-c", "--"]
        self.container["args"] = [f"ulimit -n ${{RAY_START_ULIMIT_OPEN_FILES:-65536}}; {line}"]
        self.env += self._token() + self._environment(line, head)
        self._probes(int(params["dashboard-agent-listen-port"]))
        metadata = self._template.get("metadata", {})
        namespace = self._service["metadata"]["namespace"]
        name = f"{self._name}-{self._group if self._kind == 'worker' else 'head'}{suffix}"
        metadata |= {"name": name, "namespace": namespace}
        metadata["labels"] = metadata.get("labels", {}) | self._labels()
        return {"apiVersion": "v1", "kind": "Pod"} | self._template | {"metadata": metadata}

    def _labels(self) -> dict[str, str]:
        return {
            "ray.io/cluster": self._name,
            "ray.io/group": self._group,
            "ray.io/node-type": self._kind,
            "ray.io/serve": "true" if self._kind == "worker" else "false",
        }

    def _token(self) -> list[Any]:
        options = self._cluster.get("authOptions") or {}
        if options.get("mode") != "token":
            return []
        secret = {"name": options.get("secretName") or self._name, "key": TOKEN_KEY}
        return [
            {"name": "RAY_AUTH_MODE", "value": "token"},
            {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": secret}},
        ]

    def _environment(self, line: str, head: str) -> list[Any]:
        """Variables that the pod has already stay as they are, but those that are KubeRay's."""
        fields = {
            "RAY_CLUSTER_NAME": "metadata.labels['ray.io/cluster']",
            "RAY_CLUSTER_NAMESPACE": "metadata.namespace",
            "RAY_CLOUD_INSTANCE_ID": "metadata.name",
            "RAY_NODE_TYPE_NAME": "metadata.labels['ray.io/group']",
        }
        owned = {"KUBERAY_GEN_RAY_START_CMD": line}
        if self._kind == "head":
            tags = f"kuberay_version={KUBERAY};kuberay_crd=RayService"
            owned["RAY_USAGE_STATS_EXTRA_TAGS"] = tags
        if_missing = {
            "RAY_PORT": str(GCS_PORT),
            "RAY_timeout_ms_task_wait_for_death_info": "0",
            "RAY_gcs_server_request_timeout_seconds": "5",
            "RAY_SERVE_KV_TIMEOUT_S": "5",
            "RAY_ADDRESS": f"{head}:{GCS_PORT}",
            "RAY_USAGE_STATS_KUBERAY_IN_USE": "1",
            "RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE": "1",
        }
        there = {each["name"] for each in self.env}
        plain = owned | {k: v for k, v in if_missing.items() if k not in there}
        return [
            *({"name": k, "valueFrom": {"fieldRef": {"fieldPath": v}}} for k, v in fields.items()),
            *({"name": k, "value": v} for k, v in plain.items()),
        ]

    def _probes(self, agent_port: int) -> None:
        """Those of Ray 2.53 and later; a worker's readiness asks Serve's ingress too."""
        timeout_s = 5 if self._kind == "head" else 2
        asks = {"httpGet": {"path": "api/healthz", "port": agent_port}}
        common = {"timeoutSeconds": timeout_s, "periodSeconds": 5, "successThreshold": 1}
        live = {"initialDelaySeconds": 30, "failureThreshold": 120} | common
        ready = {"initialDelaySeconds": 10, "failureThreshold": 10} | common
        self.container.setdefault("livenessProbe", live | asks)
        if self._kind == "worker":
            ports = {p["name"]: p["containerPort"] for p in self.container.get("ports", ())}
            of_raylet = _WGET.format(2, agent_port, "api/local_raylet_healthz")
            of_serve = _WGET.format(10, ports.get("serve", 8000), "-/healthz")
            asks = {"exec": {"command": ["bash", "-c", f"{of_raylet} && {of_serve}"]}}
            ready |= {"failureThreshold": 1}
        self.container.setdefault("readinessProbe", ready | asks)
