"""Single changes of the values, and what an upgrade does of each: docs/kubernetes-changes.md.

`python -m tests.kube.changes` writes the page. Each change is one that a team makes by itself; of a
mapping whose parts all act alike, one stands for all.
"""

from __future__ import annotations

import copy
from enum import StrEnum
from typing import Any

from tests.kube.api_server import claim_refusal
from tests.kube.chart import ROOT, Object, Values, cluster_of, ray_service
from tests.kube.kuberay import rolls

PAGE = ROOT / "docs" / "kubernetes-changes.md"


class Outcome(StrEnum):
    """What an upgrade does."""

    CLUSTER = "another cluster"
    SERVE = "in place, by Serve"
    COUNTS = "in place, by the job"
    GROUP = "in place, by KubeRay"
    GROWS = "in the claim"
    REFUSED = "refused by Kubernetes"
    BESIDE = "beside the cluster"


SAID = {
    Outcome.CLUSTER: "KubeRay starts a second cluster beside the first, and moves callers to it "
    "once all serves.",
    Outcome.SERVE: "`serveConfigV2` is sent to the cluster that runs. Serve replaces what changed, "
    "replica by replica; all else goes on.",
    Outcome.COUNTS: "The job of `upgrade.applyCounts` patches the RayCluster that runs. "
    "Tolerations hold for pods that start from then on.",
    Outcome.GROUP: "KubeRay adds the group to the cluster that runs.",
    Outcome.GROWS: "A volume grows where its StorageClass has `allowVolumeExpansion`.",
    Outcome.REFUSED: "A claim is as it was made. `storage.pvc.existingClaim: NAME-models` keeps "
    "it, and one that is made otherwise needs another name.",
    Outcome.BESIDE: "Other objects than the RayService, or those of its fields that touch no pod.",
}

CPU = {"name": "cpu", "cpu": 4, "memory": "4Gi", "minReplicas": 1, "maxReplicas": 2}
MIG = {"name": "mig", "cpu": 2, "memory": "12Gi", "maxReplicas": 2, "migProfile": "1g.18gb"}
DEVICE = {"runtime": "synthetic", "options": {"base_ms": 2}}
BEFORE: Values = {
    "models": {"device": DEVICE},
    "gateway": {"replicas": 3, "tenants_path": "/etc/tenants", "grpc": {}},
    "tenantFiles": {"existingSecrets": ["keys"]},
    "workerGroups": [CPU, MIG],
    "faultTolerance": {"redisAddress": "redis:6379"},
    "storage": {"type": "pvc"},
}
EXTERNAL = {
    "name": "demo-headrace-tenants-1",
    "storeRef": {"name": "vault", "kind": "ClusterSecretStore"},
    "data": [{"secretKey": "acme.yaml", "remoteRef": {"key": "acme"}}],
}
KEEP = [{"key": "a", "operator": "Exists"}]


def _model(**changed: Any) -> Values:
    return {"models": {"device": changed}}


def _gateway(**changed: Any) -> Values:
    return {"gateway": changed}


def _group(**changed: Any) -> Values:
    return {"workerGroups": [CPU | changed, MIG]}


CHANGES: dict[Outcome, dict[str, Values]] = {
    Outcome.SERVE: {
        "a model's `slo`": _model(slo={"latency_ms": 50}),
        "a model's `batch`": _model(batch={"max_size": 8}),
        "a model's `options`": _model(options={"base_ms": 3}),
        "a model's `lengths`": _model(lengths={"max": 64}),
        "a model's `queue`": _model(queue={"max_rows": 9}),
        "a model's `hedge`": _model(hedge={"mode": "off"}),
        "a model's `cache`": _model(cache={"max_bytes": 8}),
        "a model's `replicas.count`": _model(replicas={"count": 3}),
        "a model's `replicas.min`, `max`": _model(replicas={"min": 1, "max": 3}),
        "a model's `replicas.num_cpus`": _model(replicas={"num_cpus": 2}),
        "a model's `replicas.groups`": _model(replicas={"groups": [{"name": "a"}]}),
        "a model's `scaling`": _model(scaling={"mode": "observe"}),
        "a model is `optional`": _model(optional=True),
        "another model": {"models": {"device": DEVICE, "more": {"runtime": "synthetic"}}},
        "another model in its place": {"models": {"other": DEVICE, "device": None}},
        "`scaling.pool`": {"scaling": {"pool": {"max": 2}}},
        "`scaling.budget`": {"scaling": {"budget": {"cpus": 9}}},
        "`gateway.limits.max_held_bytes`": _gateway(limits={"max_held_bytes": 4096}),
        "`gateway.allowed_hosts`": _gateway(allowed_hosts=["a.example"]),
        "`gateway.preprocess`": _gateway(preprocess={"workers": 3}),
        "`gateway.tracing`": _gateway(tracing={"sample_ratio": 0.5}),
        "`gateway.drain_s`, up to ten minutes": _gateway(drain_s=60),
        "`gateway.log.decisions`": _gateway(log={"decisions": True}),
        "`gateway.channel` without files": _gateway(
            channel={"first_port": 20000, "last_port": 20063}
        ),
        "`gateway.haproxy_threads`": _gateway(haproxy_threads=2),
        "`gateway.log.level`": _gateway(log={"level": "debug"}),
        "`gateway.log.format`": _gateway(log={"format": "text"}),
        "`gateway.auth`": _gateway(auth="open"),
        "`gateway.grpc.idle_s`, `max_message_bytes`": _gateway(grpc={"idle_s": 60}),
        "`gateway.trusted_proxies`": _gateway(trusted_proxies=["10.0.0.0/8"]),
        "`gateway.compression`": _gateway(compression=True),
        "`gateway.limits.max_requests`": _gateway(limits={"max_requests": 9}),
        "`gateway.limits.max_body_bytes`": _gateway(limits={"max_body_bytes": 4096}),
        "`gateway.limits.headers_timeout_s`": _gateway(limits={"headers_timeout_s": 9}),
        "`gateway.limits.body_timeout_s`": _gateway(limits={"body_timeout_s": 9}),
        "`gateway.limits.connections_per_source`": _gateway(limits={"connections_per_source": 9}),
    },
    Outcome.COUNTS: {
        "`gateway.replicas`": _gateway(replicas=4),
        "`gateway.replicas`, fewer": _gateway(replicas=1),
        "`gateways.tolerations`": {"gateways": {"tolerations": KEEP}},
        "`head.tolerations`": {"head": {"tolerations": KEEP}},
        "a group's `minReplicas`": _group(minReplicas=2),
        "a group's `maxReplicas`": _group(maxReplicas=9),
        "a group's `tolerations`": _group(tolerations=KEEP),
    },
    Outcome.GROUP: {
        "a group added at the end": {"workerGroups": [CPU, MIG, CPU | {"name": "more"}]},
    },
    Outcome.GROWS: {
        "`storage.pvc.size`, more": {"storage": {"pvc": {"size": "200Gi"}}},
    },
    Outcome.REFUSED: {
        "`storage.pvc.size`, less": {"storage": {"pvc": {"size": "50Gi"}}},
        "`storage.pvc.storageClassName`": {"storage": {"pvc": {"storageClassName": "nfs"}}},
        "`storage.pvc.accessModes`": {"storage": {"pvc": {"accessModes": ["ReadWriteOnce"]}}},
    },
    Outcome.BESIDE: {
        "`upgrade.strategy`": {"upgrade": {"strategy": "None"}},
        "`upgrade.applyCounts`": {"upgrade": {"applyCounts": False}},
        "`commonLabels`": {"commonLabels": {"team": "search"}},
        "a group's `minAvailable`": _group(minAvailable=1),
        "`gateways.minAvailable`": {"gateways": {"minAvailable": 1}},
        "`serviceAccount.annotations`": {"serviceAccount": {"annotations": {"a.example/b": "c"}}},
        "`tenantFiles.config`": {"tenantFiles": {"config": {"tenants": {"acme": {"weight": 3}}}}},
        "another of `tenantFiles.externalSecrets`, named `NAME-tenants-1` to `-20`": {
            "tenantFiles": {"externalSecrets": [EXTERNAL]}
        },
        "`service.type`, heeded when another cluster takes over": {"service": {"type": "NodePort"}},
        "`service.annotations`, heeded when KubeRay makes the Service, and never again": {
            "service": {"annotations": {"a.example/b": "c"}}
        },
        "`ingress`": {"ingress": {"type": "route", "parentRefs": [{"name": "edge"}]}},
        "`networkPolicy.enabled`": {"networkPolicy": {"enabled": False}},
        "`networkPolicy.callers`": {"networkPolicy": {"callers": [{"podSelector": {}}]}},
        "`networkPolicy.egress`": {"networkPolicy": {"egress": [{"ports": [{"port": 443}]}]}},
        "`networkPolicy.dns`": {"networkPolicy": {"dns": [{"ports": [{"port": 53}]}]}},
        "`check`": {"check": {"enabled": False}},
        "`jobs.podTemplate`": {"jobs": {"podTemplate": {"spec": {"priorityClassName": "low"}}}},
        "`podMonitors`": {"podMonitors": {"enabled": True}},
        "`observability.rules`": {"observability": {"rules": {"enabled": True}}},
        "`observability.dashboards`": {"observability": {"dashboards": {"enabled": True}}},
        "`migLayouts`": {"migLayouts": {"configs": {"a": [{"devices": "all"}]}}},
        "`prewarm`": {"prewarm": {"enabled": True}},
        "`test`": {"test": {"existingSecret": "key"}},
        "`extraObjects`": {"extraObjects": ["{apiVersion: v1, kind: Secret, metadata: {name: a}}"]},
    },
    Outcome.CLUSTER: {
        "`image.tag`": {"image": {"tag": "0.2.0"}},
        "`image.digest`": {"image": {"digest": "sha256:" + "1" * 64}},
        "`image.repository`": {"image": {"repository": "elsewhere/headrace"}},
        "`image.pullPolicy`": {"image": {"pullPolicy": "Always"}},
        "`image.pullSecrets`": {"image": {"pullSecrets": ["registry"]}},
        "`image.haproxy`": {"image": {"haproxy": "/opt/haproxy"}},
        "`rayVersion`": {"rayVersion": "2.60.1"},
        "`runAsUser`": {"runAsUser": 20001},
        "`drainSeconds`": {"drainSeconds": 900},
        "`auth`": {"auth": {"existingSecret": "token"}},
        "`faultTolerance`": {"faultTolerance": {"redisAddress": "other:6379"}},
        "`autoscaler.idleTimeoutSeconds`": {"autoscaler": {"idleTimeoutSeconds": 60}},
        "`autoscaler.cpu`, `memory`": {"autoscaler": {"cpu": "1"}},
        "`head.cpu`": {"head": {"cpu": 4}},
        "`head.memory`": {"head": {"memory": "16Gi"}},
        "`head.objectStore`": {"head": {"objectStore": "1Gi"}},
        "`head.nodeSelector`": {"head": {"nodeSelector": {"a": "b"}}},
        "`head.podTemplate`": {"head": {"podTemplate": {"spec": {"priorityClassName": "a"}}}},
        "`gateways.cpu`": {"gateways": {"cpu": 4}},
        "`gateways.memory`": {"gateways": {"memory": "8Gi"}},
        "`gateways.objectStore`": {"gateways": {"objectStore": "512Mi"}},
        "`gateways.nodeSelector`": {"gateways": {"nodeSelector": {"a": "b"}}},
        "`gateways.podTemplate`": {"gateways": {"podTemplate": {"spec": {"schedulerName": "a"}}}},
        "a group added elsewhere": {"workerGroups": [CPU | {"name": "first"}, CPU, MIG]},
        "a group taken away": {"workerGroups": [CPU]},
        "a group's `name`": _group(name="other"),
        "a group's `cpu`": _group(cpu=8),
        "a group's `memory`": _group(memory="8Gi"),
        "a group's `objectStore`": _group(objectStore="1Gi"),
        "a group's `gpus`": _group(gpus=1),
        "a group's `migProfile`": {"workerGroups": [CPU, MIG | {"migProfile": "2g.35gb"}]},
        "a group's `resources`": _group(resources={"licence": 1}),
        "a group's `labels`": _group(labels={"zone": "a"}),
        "a group's `nodeSelector`": _group(nodeSelector={"a": "b"}),
        "a group's `idleTimeoutSeconds`": _group(idleTimeoutSeconds=60),
        "a group's `priority`": _group(priority=1),
        "a group's `env`": _group(env=[{"name": "A", "value": "1"}]),
        "a group's `podTemplate`": _group(podTemplate={"spec": {"schedulerName": "a"}}),
        "`env`": {"env": [{"name": "A", "value": "1"}]},
        "`envFrom`": {"envFrom": [{"secretRef": {"name": "a"}}]},
        "`podTemplate`": {"podTemplate": {"spec": {"schedulerName": "a"}}},
        "`serviceAccount.name`": {"serviceAccount": {"name": "a"}},
        "`storage.type`": {"storage": {"type": "none"}},
        "`storage.path`": {"storage": {"path": "/srv"}},
        "`storage.pvc.existingClaim`": {"storage": {"pvc": {"existingClaim": "a"}}},
        "`cache`": {"cache": {"size": "99Gi"}},
        "another Secret in `tenantFiles.existingSecrets`, of another name": {
            "tenantFiles": {"existingSecrets": ["keys", "more"]}
        },
        "`gateway.tenants_path`": _gateway(tenants_path="/etc/others"),
        "`gateway.port`": _gateway(port=9000),
        "`gateway.grpc.port`": _gateway(grpc={"port": 9001}),
        "`gateway.grpc.tls`": _gateway(grpc={"tls": False}),
        "`gateway.grpc`, on or off": {"gateway": {"grpc": None}},
        "`gateway.metrics_port`": _gateway(metrics_port=9500),
        "`gateway.replicas_per_node`": _gateway(replicas_per_node=2),
        "`gateway.haproxy_metrics_port`, `haproxy_stats_port`": _gateway(haproxy_metrics_port=9102),
        "`gateway.haproxy_admin_host`": _gateway(haproxy_admin_host="0.0.0.0"),
        "`gateway.replay`": _gateway(replay=False),
    },
}  # fmt: skip


WHY = """\
Why the rest needs another cluster:

- **A pod's own**: image, user, CPUs, memory, devices, volumes, environment, accounts, nodes,
  ports of containers (`gateway.port`, `metrics_port`, `replicas_per_node`), and `drainSeconds`,
  its time to end. Kubernetes changes no pod that runs.
- **Ray's start**: `rayVersion`, `auth`, `faultTolerance`, labels, resources, object stores, what
  its autoscaler is told. `ray start` reads it once.
- **HAProxy's start**: ports, addresses, `gateway.tls`. HAProxy has them from the environment of
  Serve's manager, before there is a gateway to ask.
- **`gateway.replay`**: an older HAProxy would repeat what must not run twice.
""".splitlines()

# Of no value: pods read these Secrets as files.
ELSEWHERE = (
    "a key more, or fewer, in a Secret of `tenantFiles`",
    "the Secret `NAME-tenants`, and `NAME-tenants-1` to `-20`, made or deleted",
    "a key that is revoked (`headrace key revoke`)",
)


def changed(change: Values) -> Values:
    """The values before, with the change merged in as Helm does it."""
    return _merged(copy.deepcopy(BEFORE), change)


def _merged(values: Values, change: Values) -> Values:
    for name, each in change.items():
        if each is None:
            values.pop(name, None)
        elif isinstance(each, dict) and isinstance(values.get(name), dict):
            values[name] = _merged(values[name], each)
        else:
            values[name] = copy.deepcopy(each)
    return values


def outcome(before: list[Object], after: list[Object]) -> Outcome:
    """By KubeRay's rules, of the objects of a release."""
    old, new = (_claims(each) for each in (before, after))
    if any(claim_refusal(old[name], new[name]) for name in old.keys() & new.keys()):
        return Outcome.REFUSED
    if any(old[name]["spec"] != new[name]["spec"] for name in old.keys() & new.keys()):
        return Outcome.GROWS
    old, new = cluster_of(before), cluster_of(after)
    if rolls(old, new):
        return Outcome.CLUSTER
    if len(old["workerGroupSpecs"]) < len(new["workerGroupSpecs"]):
        return Outcome.GROUP
    if old != new:
        return Outcome.COUNTS
    configs = [ray_service(each)["spec"]["serveConfigV2"] for each in (before, after)]
    return Outcome.SERVE if configs[0] != configs[1] else Outcome.BESIDE


def _claims(found: list[Object]) -> dict[str, Object]:
    kind = "PersistentVolumeClaim"
    return {each["metadata"]["name"]: each for each in found if each["kind"] == kind}


def page() -> str:
    count = sum(len(each) for each in CHANGES.values())
    lines = [
        "# What an upgrade does of each change",
        "",
        "Written by `python -m tests.kube.changes`; the tests hold each row to KubeRay's rules",
        f"([Kubernetes](kubernetes.md#what-starts-another-cluster)). {count} single changes:",
        "",
        "| | changes | |",
        "|---|--:|---|",
        *(f"| {each} | {len(CHANGES[each])} | {SAID[each]} |" for each in CHANGES),
        "",
        "A change of several is the largest of them: another cluster before all others.",
        "A change of `gateway` replaces the gateways, and no other replica. Whenever they are,",
        "HAProxy asks them for its bounds, and all actors take up their log level within 5 s.",
        "`gateway.keep_alive_s` is heard by the next cluster, and starts none by itself.",
        "",
        *WHY,
    ]
    for each, changes in CHANGES.items():
        lines += ["", f"## {each[0].upper() + each[1:]}", "", "| change |", "|---|"]
        lines += [f"| {what} |" for what in changes]
    lines += ["", "Of no value, and heard by gateways within a minute or two:", ""]
    lines += [f"- {what}" for what in ELSEWHERE]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
