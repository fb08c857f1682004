"""Values that no schema can refuse, and that cannot work: the chart says so in a sentence."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.kube.chart import ROOT, Values, cluster_of, objects, ray_service

GROUP = {"name": "cpu", "cpu": 4, "memory": "4Gi"}
MODEL = {"runtime": "synthetic"}
INSTANCE = "app.kubernetes.io/instance"


def over_ray(**field: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": {"containers": [{"name": "ray", **field}]}}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"models": {}}, "models declares no model"),
    ({"gateway": {"host": "127.0.0.1"}}, "gateway.host is 127.0.0.1, which nobody reaches"),
    (
        {"gateway": {"labels": {"zone": "a"}}},
        "gateway.labels wants zone: a, which gateways.rayLabels does not have",
    ),
    ({"gateway": {"num_cpus": 0.5}}, "gateway.num_cpus is 0.5; must be left out"),
    ({"gateway": {"num_cpus": None}}, "gateway.num_cpus is 1; must be left out"),
    ({"gateway": {"ingress": "direct"}}, "gateway.ingress is direct, which one machine alone has"),
    ({"workerGroups": []}, "which a pod of none of workerGroups has"),
    ({"workerGroups": [GROUP, GROUP]}, "workerGroups[1].name is cpu, which is taken"),
    ({"workerGroups": [GROUP | {"name": "gateways"}]}, "workerGroups[0].name is gateways"),
    (
        {"workerGroups": [GROUP | {"gpus": 1, "migProfile": "1g.10gb"}]},
        "workerGroups[0] (cpu) has both migProfile and gpus",
    ),
    (
        {"workerGroups": [GROUP | {"devices": "dra"}]},
        "workerGroups[0] (cpu) has devices: dra and no device to claim",
    ),
    (
        {"workerGroups": [GROUP | {"gpus": 1, "devices": "gke"}]},
        "workerGroups[0] (cpu) has devices: gke, which is how GKE offers MIG slices; must have",
    ),
    (
        {"workerGroups": [GROUP | {"minReplicas": 3, "maxReplicas": 2}]},
        "workerGroups[0] (cpu) has maxReplicas 2, below minReplicas 3",
    ),
    (
        {"autoscaler": {"enabled": False}},
        "workerGroups[0] (cpu) has minReplicas 0; with autoscaler.enabled: false minReplicas must "
        "be at least 1",
    ),
    (
        {"workerGroups": [GROUP | {"objectStore": "4Gi"}]},
        "workerGroups[0] (cpu) has memory 4Gi, which its objectStore takes",
    ),
    (
        {"models": {"big": MODEL | {"replicas": {"num_gpus": 1}}}},
        "models.big wants 0.5 CPUs, 1 GPUs and {}, which a pod of none of workerGroups has",
    ),
    (
        {
            "models": {
                "m": MODEL | {"replicas": {"groups": [{"name": "mig", "resources": {"mig_3g": 1}}]}}
            }
        },
        'models.m, group mig wants 0.5 CPUs, 0 GPUs and {"mig_3g":1}',
    ),
    (
        {"models": {"slow": MODEL | {"replicas": {"hang_limit_s": 400}}}},
        "drainSeconds is 660; model-slow may take 820 s to finish what it has, so it "
        "must be at least 835",
    ),
    (
        {"models": {f"m{each}": MODEL for each in range(60)}},
        "head.memory is 8Gi; 60 anchors and the head itself may take 11260 MiB",
    ),
    (
        {"models": {f"m{each}": MODEL for each in range(38)}, "scaling": {"pool": {}}},
        "head.memory is 8Gi; 39 anchors and the head itself may take 8215 MiB",
    ),
    (
        {"scaling": {"pool": {"num_gpus": 1}}},
        "scaling.pool wants 0.5 CPUs, 1 GPUs and {}, which a pod of none of workerGroups has",
    ),
    (
        {"models": {"m": MODEL | {"scaling": {"policy": "mine.yaml"}}}},
        "models.m.scaling.policy is the file mine.yaml, which a chart cannot read",
    ),
    ({"tenantFiles": {"existingSecrets": ["keys"]}}, "gateway.tenants_path is missing"),
    ({"gateway": {"tenants_path": "/etc/tenants"}}, "tenantFiles is empty"),
    (
        {"prewarm": {"enabled": True, "artifacts": "fetch"}},
        "prewarm.artifacts is fetch and cache.type emptyDir, which a node's pods do not share",
    ),
    (
        {"storage": {"pvc": {"from": "s3://models/", "accessModes": ["ReadOnlyMany"]}}},
        "storage.pvc.accessModes is ReadOnlyMany, and a job is to write what storage.pvc.from",
    ),
    ({"storage": {"type": "image"}}, "storage.image.reference is missing"),
    (
        {"upgrade": {"strategy": "NewClusterWithIncrementalUpgrade"}},
        "by which KubeRay gives each cluster a Service of its own",
    ),
    (
        {"podAnnotations": {"a": "b"}},
        "podAnnotations is gone; must be podTemplate.metadata.annotations",
    ),
    ({"upgrade": {"stepPercent": 5}}, "upgrade.stepPercent is gone with the incremental upgrade"),
    (
        {"head": {"priorityClassName": "a"}},
        "head.priorityClassName is gone; must be head.podTemplate.spec.priorityClassName",
    ),
    (
        {"gateways": {"affinity": {"podAffinity": {}}}},
        "gateways.affinity is gone; must be gateways.podTemplate.spec.affinity",
    ),
    (
        {"workerGroups": [GROUP, GROUP | {"name": "b", "runtimeClassName": "nvidia"}]},
        "workerGroups[1].runtimeClassName is gone; must be workerGroups[1].podTemplate.spec",
    ),
    ({"service": {"type": "LoadBalancer"}}, "networkPolicy.callers must have an ipBlock"),
    ({"ingress": {"type": "route"}}, "ingress.parentRefs is empty"),
    (
        {"ingress": {"type": "ingress", "hosts": ["a.example.org"]}},
        "ingress.hosts has a.example.org, to which gateways without keys answer 403",
    ),
    ({"gateway": {"tls": {"certificate": "/a.pem", "key": "/b.pem"}}}, "gateway.tls is set"),
    ({"gateway": {"port": 8265}}, "gateway.port takes port 8265, which Ray or another"),
    ({"gateway": {"grpc": {"port": 8000}}}, "gateway.port takes port 8000, which Ray or another"),
    (
        {"gateway": {"grpc": {"port": 8404}}},
        "gateway.haproxy_stats_port takes port 8404, which Ray or another",
    ),
    (
        {"gateway": {"metrics_port": 8079, "replicas_per_node": 2}},
        "gateway.metrics_port takes port 8080",
    ),
    ({"gateway": {"haproxy_metrics_port": 44217}}, "gateway.haproxy_metrics_port takes port 44217"),
    ({"gateway": {"grpc": {"port": 10001}}}, "gateway.grpc.port takes port 10001"),
    ({"gateway": {"haproxy_stats_port": 6379}}, "gateway.haproxy_stats_port takes port 6379"),
    (
        {"workerGroups": [GROUP | {"maxReplicas": 2, "minAvailable": 2}]},
        "workerGroups[0] (cpu) has minAvailable 2 and at most 2 pods",
    ),
    (
        {
            "autoscaler": {"enabled": False},
            "workerGroups": [GROUP | {"minReplicas": 1, "idleTimeoutSeconds": 60}],
        },
        "workerGroups[0] (cpu) has idleTimeoutSeconds, which the autoscaler alone heeds",
    ),
    ({"rayVersion": "2.51.0"}, "rayVersion is 2.51.0; Headrace runs on Ray 2.60"),
    (
        {"env": [{"name": "RAY_ADDRESS", "value": "elsewhere:6379"}]},
        "head's pods get RAY_ADDRESS as environment, which KubeRay writes",
    ),
    (
        {"workerGroups": [GROUP | {"env": [{"name": "HEADRACE_LOG_LEVEL", "value": "debug"}]}]},
        "group-cpu's pods get HEADRACE_LOG_LEVEL as environment, which the settings of the gateway",
    ),
    (
        {"env": [{"name": "RAY_SERVE_HAPROXY_NBTHREAD", "value": "8"}]},
        "head's pods get RAY_SERVE_HAPROXY_NBTHREAD as environment; must be left out: "
        "gateway.haproxy_threads says it",
    ),
    (
        {
            "gateways": {
                "podTemplate": {
                    "spec": {
                        "containers": [
                            {
                                "name": "ray",
                                "env": [{"name": "RAY_SERVE_HAPROXY_BINARY_PATH", "value": "/a"}],
                            }
                        ]
                    }
                }
            }
        },
        "gateways's pods get RAY_SERVE_HAPROXY_BINARY_PATH as environment; must be left out: "
        "image.haproxy says it",
    ),
    (
        {"podTemplate": {"metadata": {"labels": {"app.kubernetes.io/component": "mine"}}}},
        "head's pods get the label app.kubernetes.io/component, by which pods are found",
    ),
    (
        {
            "workerGroups": [
                GROUP | {"podTemplate": {"metadata": {"labels": {"ray.io/group": "a"}}}}
            ]
        },
        "group-cpu's pods get the label ray.io/group",
    ),
    (
        {"gateways": {"podTemplate": {"metadata": {"labels": {"headrace.io/node": "a"}}}}},
        "gateways's pods get the label headrace.io/node",
    ),
    (
        {"jobs": {"podTemplate": {"metadata": {"labels": {"app.kubernetes.io/component": "a"}}}}},
        "test's pods get the label app.kubernetes.io/component",
    ),
    (
        {"podTemplate": {"spec": {"restartPolicy": "Always"}}},
        "head's pods get restartPolicy Always; must be left out",
    ),
    (
        {"jobs": {"podTemplate": {"spec": {"restartPolicy": "Always"}}}},
        "jobs.podTemplate.spec.restartPolicy is Always; must be Never or OnFailure",
    ),
    (
        {"gateways": {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 689}}}},
        "gateways's pods get terminationGracePeriodSeconds 689; must be at least 690",
    ),
    (
        over_ray(lifecycle={"preStop": {"exec": {"command": ["ray", "stop"]}}}),
        "head's container ray has a preStop, which takes its time from the drain",
    ),
    (
        over_ray(ports=[{"name": "serve", "containerPort": 9}]),
        "container ray has ports serve twice",
    ),
    (
        {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
        "head's container ray has env A twice",
    ),
    ({"podTemplate": {"spec": {"serviceAccountName": "a"}}}, "head's pod gets serviceAccountName"),
    (
        {"head": {"podTemplate": {"spec": {"automountServiceAccountToken": False}}}},
        "head's pod gets automountServiceAccountToken; must be left out",
    ),
    (
        {"env": [{"name": "RAY_SERVE_ENABLE_HA_PROXY", "value": "0"}]},
        "head's pods get RAY_SERVE_ENABLE_HA_PROXY as environment, which Headrace needs as it is",
    ),
    (
        {
            "gateway": {
                "channel": {
                    "tls": {
                        "certificate": "/tls/tls.crt",
                        "key": "/tls/tls.key",
                        "authority": "/tls/ca.crt",
                    }
                }
            }
        },
        "gateway.channel.tls.authority is /tls/ca.crt, and no volume of gateways is mounted there",
    ),
    (
        {"gateway": {"replicas": 2}, "gateways": {"minAvailable": 2}},
        "gateways.minAvailable is 2, and there are 2 of their pods",
    ),
]


# Of the rows of docs/kubernetes.md's table, those that quote the chart: NAME is …, NAME wants ….
QUOTED = re.compile(r"^\| `([a-z][\w.]* (?:is|wants) [^`]*)` \|", re.MULTILINE)


def test_the_documentation_quotes_what_is_said() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    quoted = QUOTED.findall(page.partition("## Troubleshooting")[2])
    assert len(quoted) >= 6
    assert [each for each in quoted if not any(each in said for _, said in REFUSED)] == []


@pytest.mark.parametrize(
    ("given", "said"), REFUSED, ids=lambda each: each if isinstance(each, str) else ""
)
def test_what_cannot_work_is_refused_with_a_sentence(given: dict[str, Any], said: str) -> None:
    import helm_python

    fine: Values = {"models": {"device": MODEL}, "workerGroups": [GROUP]}
    assert objects(fine)
    with pytest.raises(helm_python.HelmRenderError) as refused:
        objects(fine | given)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("release", "name"), [("team.a.prod", "team.a.prod-headrace"), ("1team", "1team-headrace")]
)
def test_a_release_that_kuberay_refuses_needs_another_name(release: str, name: str) -> None:
    import helm_python

    fine: Values = {"models": {"device": MODEL}, "workerGroups": [GROUP]}
    with pytest.raises(helm_python.HelmRenderError) as refused:
        objects(fine, release)
    assert f"would be called {name}, which KubeRay refuses" in str(refused.value)
    assert "set fullnameOverride" in str(refused.value)
    assert objects(fine | {"fullnameOverride": "team"}, release)


def test_what_is_gone_may_be_as_earlier_charts_had_it_by_default() -> None:
    """`helm upgrade --reuse-values` gives their defaults on."""
    fine: Values = {"models": {"device": MODEL}, "workerGroups": [GROUP]}
    gone: Values = {"podAnnotations": {}, "head": {"affinity": {}, "priorityClassName": ""}}
    assert cluster_of(objects(fine | gone)) == cluster_of(objects(fine))


def test_pods_have_the_default_account_where_none_is_made() -> None:
    fine: Values = {"models": {"device": MODEL}, "workerGroups": [GROUP]}
    found = objects(fine | {"serviceAccount": {"create": False}})
    accounts = [each["metadata"]["name"] for each in found if each["kind"] == "ServiceAccount"]
    assert accounts == ["demo-headrace-scale"], "the job's, whose rights no other pod has"
    for group in cluster_of(found)["workerGroupSpecs"]:
        assert group["template"]["spec"]["serviceAccountName"] == "default"


@pytest.mark.parametrize("name", ["on", "yes", "true", "null", "n"])
def test_texts_that_yaml_reads_as_something_else_stay_texts(name: str) -> None:
    values: Values = {
        "models": {"device": MODEL},
        "workerGroups": [
            GROUP | {"name": name, "podTemplate": {"spec": {"priorityClassName": "123"}}}
        ],
        "fullnameOverride": name,
        "auth": {"existingSecret": "123"},
        "serviceAccount": {"name": "0123"},
        "storage": {"type": "pvc", "path": "/mo dels: x", "pvc": {"existingClaim": "1e3"}},
        "observability": {"rules": {"enabled": True, "runbook": "https://a.example/b: #c"}},
    }
    found = objects(values, "123")
    assert ray_service(found)["metadata"]["name"] == name
    assert all(each["metadata"]["labels"][INSTANCE] == "123" for each in found)
    cluster = cluster_of(found)
    assert cluster["authOptions"]["secretName"] == "123"
    (_, group) = cluster["workerGroupSpecs"]
    assert group["groupName"] == name
    pod = group["template"]["spec"]
    assert pod["priorityClassName"] == "123"
    assert pod["serviceAccountName"] == "0123"
    assert "/mo dels: x" in [each["mountPath"] for each in pod["containers"][0]["volumeMounts"]]
    claims = [each["persistentVolumeClaim"] for each in pod["volumes"] if each["name"] == "models"]
    assert claims == [{"claimName": "1e3", "readOnly": True}]
    (rules,) = (each for each in found if each["kind"] == "PrometheusRule")
    books = [
        rule["annotations"]["runbook_url"]
        for group in rules["spec"]["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    assert books
    assert all(book.startswith("https://a.example/b: #c#") for book in books)
