"""All that is checked of a release's objects, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from deployments.settings.gateway import GatewaySettings
from tests.kube import built_ins, kuberay, ray_rules, wiring
from tests.kube.chart import Object, Values, cluster_of, merged, ray_service, settings_of
from tests.kube.crds import Crds
from tests.kube.hardening import asks_kubernetes, weaknesses
from tests.kube.pods import as_pod, insecurities, pods

# What others bring to a cluster is not among the CRDs.
_OTHERS = ("networking.gke.io", "cert-manager.io", "security.istio.io")

Layer = tuple[str, Callable[[], Iterator[str]]]


def complaints(objects: Sequence[Object], values: Values, crds: Crds | None) -> list[str]:
    """`LAYER: what is wrong`; nothing where all is fine. Custom resources are left out without the
    CRDs. `values`: what the objects were made of."""
    found = list(objects)
    service, cluster = ray_service(found), cluster_of(found)
    gateway = GatewaySettings.model_validate(settings_of(values)["gateway"])
    program = Path(merged(values)["image"]["haproxy"])
    given = {each["name"]: each["value"] for each in values.get("env", ()) if "value" in each}
    layers: tuple[Layer, ...] = (
        ("schema", lambda: _of_schemas(found, crds)),
        ("kuberay", lambda: kuberay.refusals(service)),
        ("serve", lambda: ray_rules.serve_complaints(service)),
        ("resources", lambda: ray_rules.resource_complaints(cluster, ray_rules.claimed(found))),
        ("environment", lambda: ray_rules.environment_complaints(cluster, gateway, program, given)),
        ("drain", lambda: ray_rules.drain_complaints(service)),
        ("security", lambda: _of_security(found, cluster)),
        ("wiring", lambda: wiring.complaints(found)),
    )
    return [f"{layer}: {each}" for layer, look in layers for each in look()]


def _of_schemas(objects: list[Object], crds: Crds | None) -> Iterator[str]:
    for each in objects:
        name = f"{each['kind']}/{each['metadata']['name']}"
        if _is_custom(each):
            if each["apiVersion"].startswith(_OTHERS) or each["kind"] == "GRPCRoute":
                continue  # whose CRDs the folder does not have
            if crds is not None and not crds.knows(each):
                yield f"{name}: no CRD of {each['apiVersion']} is known"
            elif crds is not None:
                yield from (f"{name}: {said}" for said in crds.complaints(each))
        else:
            yield from (f"{name}: {said}" for said in built_ins.complaints(each, _versions(each)))
    for each in objects:
        if each["kind"] == "RayService":
            for name, template in pods(each):
                versions = built_ins.VERSIONS if not _has_image_volume(template) else ("1.37",)
                pod = as_pod(template)
                yield from (f"{name}: {said}" for said in built_ins.complaints(pod, versions))


def _versions(each: Object) -> tuple[str, ...]:
    """Claims of devices came with 1.34; the chart refuses them on older ones."""
    claims = each["kind"] == "ResourceClaimTemplate"
    return tuple(v for v in built_ins.VERSIONS if v >= "1.34" or not claims)


def _is_custom(each: Object) -> bool:
    """A group of Kubernetes' own has no dot, or ends in .k8s.io (but for the Gateway API's)."""
    group = each["apiVersion"].rpartition("/")[0]
    return "." in group and (not group.endswith("k8s.io") or group.startswith("gateway."))


def _has_image_volume(template: Object) -> bool:
    return any("image" in volume for volume in template["spec"]["volumes"])


def _of_security(objects: list[Object], cluster: Object) -> Iterator[str]:
    for each in objects:
        for name, template in pods(each):
            weak = weaknesses(template, asks_kubernetes=asks_kubernetes(cluster, template))
            for said in (*insecurities(template), *weak):
                yield f"{name}: {said}"
