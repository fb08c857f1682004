"""Whether objects find each other: selectors select pods, ports and volumes that are named exist,
and what must not roll a cluster stands in none of its pods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.kube.chart import Object
from tests.kube.pods import pods

_ROLLING_LABELS = ("helm.sh/chart", "app.kubernetes.io/version", "app.kubernetes.io/managed-by")


def complaints(objects: Sequence[Object]) -> Iterator[str]:
    templates = dict(pair for each in objects for pair in pods(each))
    for each in objects:
        name = f"{each['kind']}/{each['metadata']['name']}"
        for selector in _selectors(each):
            if not any(selects(selector, template) for template in templates.values()):
                yield f"{name} selects no pod by {selector}"
        if each["kind"] == "PodMonitor":
            yield from _of_monitor(name, each["spec"], templates)
    for name, template in templates.items():
        yield from _of_template(name, template)
    yield from _of_services(objects)
    yield from _of_claims(objects, templates)


def _of_claims(objects: Sequence[Object], templates: Mapping[str, Object]) -> Iterator[str]:
    """Claims of devices are made of templates that are there, and taken by the container."""
    there = {e["metadata"]["name"] for e in objects if e["kind"] == "ResourceClaimTemplate"}
    for name, template in templates.items():
        claims = template["spec"].get("resourceClaims", ())
        for each in claims:
            if each["resourceClaimTemplateName"] not in there:
                yield f"{name} claims by {each['resourceClaimTemplateName']}, which is not there"
        taken = {
            claim["name"]
            for container in template["spec"]["containers"]
            for claim in container["resources"].get("claims", ())
        }
        if taken != {each["name"] for each in claims}:
            yield f"{name} declares other claims than its containers take"


def _selectors(each: Object) -> Iterator[Mapping[str, Any]]:
    spec = each.get("spec", {})
    if each["kind"] in ("PodDisruptionBudget", "PodMonitor"):
        yield spec["selector"]
    if each["kind"] == "NetworkPolicy":
        yield spec["podSelector"]
        for peers in [r.get("from", ()) for r in spec.get("ingress", ())] + [
            r.get("to", ()) for r in spec.get("egress", ())
        ]:
            yield from (p["podSelector"] for p in peers if "podSelector" in p and len(p) == 1)


def selects(selector: Mapping[str, Any], template: Object) -> bool:
    labels = template.get("metadata", {}).get("labels", {})
    if any(labels.get(k) != v for k, v in selector.get("matchLabels", {}).items()):
        return False
    for each in selector.get("matchExpressions", ()):
        if (labels.get(each["key"]) in each["values"]) != (each["operator"] == "In"):
            return False
    return True


def _of_monitor(name: str, spec: Object, templates: Mapping[str, Object]) -> Iterator[str]:
    chosen = [each for each in templates.values() if selects(spec["selector"], each)]
    for endpoint in spec["podMetricsEndpoints"]:
        for template in chosen:
            ports = {p["name"] for c in template["spec"]["containers"] for p in c["ports"]}
            if endpoint["port"] not in ports:
                yield f"{name} asks port {endpoint['port']}; a pod has {sorted(ports)}"


def _of_template(name: str, template: Object) -> Iterator[str]:
    spec = template["spec"]
    volumes = {each["name"] for each in spec.get("volumes", ())}
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    mounted = {m["name"] for each in containers for m in each.get("volumeMounts", ())}
    for missing in mounted ^ volumes:
        yield f"{name}: volume {missing} is mounted or declared, not both"
    if not name.startswith("RayService"):
        return
    metadata = template.get("metadata", {})
    for label in _ROLLING_LABELS:
        if label in metadata.get("labels", {}):
            yield f"{name}: label {label} changes with every release, and would roll the cluster"
    for annotation in metadata.get("annotations", {}):
        if "checksum" in annotation:
            yield f"{name}: annotation {annotation} would roll the cluster"


def _of_services(objects: Sequence[Object]) -> Iterator[str]:
    """KubeRay names the Service after the RayService; gRPC's is the chart's own."""
    (service,) = [each for each in objects if each["kind"] == "RayService"]
    wanted = f"{service['metadata']['name']}-serve-svc"
    own = {each["metadata"]["name"] for each in objects if each["kind"] == "Service"}
    for each in objects:
        for name in _backends(each):
            if name != wanted and (each["kind"] != "GRPCRoute" or name not in own):
                yield f"{each['kind']} sends requests to {name}; KubeRay's service is {wanted}"


def _backends(each: Object) -> Iterator[str]:
    if each["kind"] == "HealthCheckPolicy":
        yield each["spec"]["targetRef"]["name"]
    for rule in each.get("spec", {}).get("rules", ()) if each["kind"] != "PrometheusRule" else ():
        yield from (backend["name"] for backend in rule.get("backendRefs", ()))
        for path in rule.get("http", {}).get("paths", ()):
            yield path["backend"]["service"]["name"]
