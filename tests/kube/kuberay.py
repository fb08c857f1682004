"""What KubeRay's operator refuses although its CRD takes it, which changes make it start a new
cluster, and what it does of a RayService over time.

Source: kuberay v1.7.0, `utils/validation.go`, `rayservice_controller.go`
(isClusterSpecHashEqual), `utils/util.go` (GenerateHashWithoutReplicasAndWorkersToDelete).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.kube.chart import Object

_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LABEL_KEY = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NAME = 47
_BEHIND_GATES = ("networkPolicy", "tlsOptions", "historyServerOptions")
_REDIS = ("RAY_REDIS_ADDRESS", "REDIS_PASSWORD", "REDIS_USERNAME")
# Of a group, what another hash does not come from.
_NOT_HASHED_IN_GROUP = ("replicas", "minReplicas", "maxReplicas")
_NOT_HASHED_IN_POD = ("tolerations", "schedulingGates")


def refusals(service: Object) -> Iterator[str]:
    """Of a RayService with an autoscaler, KubeRay's feature gates as they are by default."""
    name, spec = service["metadata"]["name"], service["spec"]
    cluster = spec["rayClusterConfig"]
    if len(name) > _NAME or not _DNS_1035.fullmatch(name):
        yield f"name {name!r} must be a DNS-1035 label of at most {_NAME} characters"
    if not cluster.get("rayVersion"):
        yield "rayVersion is missing: probes would be those of an old Ray"
    for gated in _BEHIND_GATES:
        if gated in cluster:
            yield f"{gated} is behind a feature gate that is off"
    if cluster.get("authOptions") and _version(cluster) < (2, 52):
        yield f"rayVersion {cluster.get('rayVersion')} knows no tokens"
    head = cluster["headGroupSpec"]
    if (head.get("headService") or {}).get("metadata", {}).get("name"):
        yield "headService must have no name"
    yield from _of_redis(cluster)
    yield from _of_upgrades(spec)
    for group in (head, *cluster.get("workerGroupSpecs", ())):
        yield from _of_group(group, bool(cluster.get("enableInTreeAutoscaling")))
    names = [group["groupName"] for group in cluster.get("workerGroupSpecs", ())]
    if len(set(names)) < len(names):
        yield f"group names {names} must differ"


def _of_redis(cluster: Object) -> Iterator[str]:
    head = cluster["headGroupSpec"]
    env = {each["name"] for each in head["template"]["spec"]["containers"][0].get("env", ())}
    for name in env.intersection(_REDIS):
        yield f"{name} must be given by gcsFaultToleranceOptions, not by the environment"
    if (cluster.get("gcsFaultToleranceOptions") or {}).get("backend") == "rocksdb":
        yield "rocksdb is behind a feature gate that is off"
    if "redis-password" in head.get("rayStartParams", {}):
        yield "redis-password must be given by gcsFaultToleranceOptions"


def _of_upgrades(spec: Object) -> Iterator[str]:
    strategy = spec.get("upgradeStrategy") or {}
    kind = strategy.get("type")
    if kind not in (None, "NewCluster", "None"):
        yield f"upgradeStrategy.type {kind} is none of those that are known here"


def _of_group(group: Object, autoscaling: bool) -> Iterator[str]:
    name, spec = group.get("groupName", "head"), group["template"]["spec"]
    params = group.get("rayStartParams", {})
    if not spec.get("containers"):
        yield f"{name} has no container"
    if group.get("resources") and {"num-cpus", "num-gpus", "memory", "resources"} & params.keys():
        yield f"{name} has both resources and rayStartParams of them"
    if "labels" in params:
        yield f"{name} has labels in rayStartParams; they belong to the group"
    if autoscaling and spec.get("restartPolicy", "Never") != "Never":
        yield f"{name} has restartPolicy {spec['restartPolicy']}; the autoscaler needs Never"
    if "idleTimeoutSeconds" in group and not autoscaling:
        yield f"{name} has idleTimeoutSeconds without an autoscaler"
    for key, value in group.get("labels", {}).items():
        if not (_LABEL_KEY.fullmatch(key) and _LABEL.fullmatch(value)):
            yield f"{name} has the label {key}: {value}, which is none of Kubernetes'"
    if group.get("suspend") and autoscaling:
        yield f"{name} is suspended, which the autoscaler does not know"
    for param, value in params.items():
        if not isinstance(value, str):
            yield f"{name}: rayStartParams.{param} must be text"


def _version(cluster: Object) -> tuple[int, ...]:
    return tuple(int(part) for part in (cluster.get("rayVersion") or "0").split("."))


def rolls(old: Object, new: Object) -> bool:
    """Whether a RayService changed so makes another cluster; else it is changed as it runs.
    Both are `spec.rayClusterConfig`."""
    before, after = _hashed(old), _hashed(new)
    count = len(before["workerGroupSpecs"])
    appended = after | {"workerGroupSpecs": after["workerGroupSpecs"][:count]}
    return before not in (after, appended)


def _hashed(cluster: Object) -> Object:
    found = copy.deepcopy(cluster)
    found.pop("upgradeStrategy", None)
    for group in (found["headGroupSpec"], *found.setdefault("workerGroupSpecs", [])):
        for name in _NOT_HASHED_IN_GROUP:
            group.pop(name, None)
        group.get("scaleStrategy", {}).pop("workersToDelete", None)
        for name in _NOT_HASHED_IN_POD:
            group["template"]["spec"].pop(name, None)
    return found


@dataclass
class Operator:
    """The clusters that KubeRay makes of a RayService (strategies NewCluster and None).

    Source: `rayservice_controller.go`: reconcileRayCluster, shouldUpdateCluster,
    shouldPrepareNewCluster, constructRayClusterForRayService, cleanUpRayClusterInstance. `active`
    and `pending` are its status, which users can change; the Serve config goes to the pending
    cluster where there is one.
    """

    clusters: dict[str, Object] = field(default_factory=dict)
    serve_configs: dict[str, str] = field(default_factory=dict)
    active: str = ""
    pending: str = ""
    _made: int = 0

    def reconcile(self, service: Object) -> None:
        """Until nothing changes any more; `serves` says when a pending cluster is ready."""
        for _ in range(4):
            self._once(service)

    def serves(self) -> None:
        """The pending cluster is ready, and becomes the active one."""
        self.active, self.pending = self.pending, ""

    def deletes_what_dangles(self) -> None:
        """rayClusterDeletionDelaySeconds later."""
        kept = {self.active, self.pending}
        self.clusters = {name: each for name, each in self.clusters.items() if name in kept}

    def status(self) -> Object:
        return {
            "activeServiceStatus": {"rayClusterName": self.active},
            "pendingServiceStatus": {"rayClusterName": self.pending},
        }

    def _once(self, service: Object) -> None:
        goal = service["spec"]["rayClusterConfig"]
        if self.pending and self.pending not in self.clusters:
            self.clusters[self.pending] = _constructed(service)
        for name in (self.active, self.pending):
            upgrading = name == self.active and self.pending
            if name in self.clusters and not upgrading:
                was = self.clusters[name]["metadata"]["made_of"]
                if _hashed(was) != _hashed(goal) and not rolls(was, goal):
                    self.clusters[name] = _constructed(service)  # groups were added at the end
        self.serve_configs[self.pending or self.active] = service["spec"]["serveConfigV2"]
        newest = self.clusters.get(self.pending) or self.clusters.get(self.active)
        if newest is not None:
            if not rolls(newest["metadata"]["made_of"], goal):
                return
            if service["spec"]["upgradeStrategy"]["type"] == "None":
                return
        self._made += 1
        self.pending = f"{service['metadata']['name']}-{self._made}"


def _constructed(service: Object) -> Object:
    """A RayCluster; `made_of` stands for the hash in its annotations."""
    spec = service["spec"]["rayClusterConfig"]
    annotations = dict(service["metadata"].get("annotations", {}))
    metadata = {"annotations": annotations, "made_of": copy.deepcopy(spec)}
    return {"metadata": metadata, "spec": copy.deepcopy(spec)}
