"""Tells running RayClusters what KubeRay does not: numbers of pods, and what pods tolerate.

Such a change of a RayService makes no other cluster, and KubeRay leaves the one that runs as it is.
A cluster whose pods are others than the RayService's is left alone: KubeRay replaces it, or adds to
it.
"""

import json
import os
import re
import ssl
import sys
import urllib.error
import urllib.request
from fractions import Fraction

POD_ANNOTATION = "headrace.io/pods"  # of both: what pods are made of, but for what is applied here
COUNTS = ("minReplicas", "maxReplicas")
UNITS = {"": 1, "m": Fraction(1, 1000), "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
QUANTITY = re.compile(r"([0-9.]+)(m|k|M|G|T|Ki|Mi|Gi|Ti|)")


def apply(ask, name):
    """Patches the clusters of the RayService. `ask`: of a method, a resource, its name and a JSON
    patch, the answer; None for what is not there."""
    service = ask("GET", "rayservices", name)
    status = service.get("status", {})
    for which in ("activeServiceStatus", "pendingServiceStatus"):
        cluster_name = name_of(status, which)
        cluster = ask("GET", "rayclusters", cluster_name) if cluster_name else None
        if cluster is None:
            continue
        if not same_pods(service, cluster):
            replaced = which == "activeServiceStatus" and name_of(status, "pendingServiceStatus")
            if pods(cluster) is None and not replaced:
                sys.exit(
                    f"{cluster_name} has other pods than the RayService, and KubeRay has not begun "
                    "to replace it; its numbers of pods and tolerations were not changed"
                )
            print(f"{cluster_name} has other pods than the RayService, which KubeRay sees to")
            continue
        changes = patch(service["spec"]["rayClusterConfig"], cluster["spec"])
        if changes:
            ask("PATCH", "rayclusters", cluster_name, changes)
        print(f"{cluster_name}: {json.dumps(changes) if changes else 'nothing to change'}")


def name_of(status, which):
    return (status.get(which) or {}).get("rayClusterName")


def same_pods(service, cluster):
    """Where no other cluster is ever made, whatever can be applied is. A cluster of an earlier
    chart lacks the annotation."""
    if service["spec"]["upgradeStrategy"]["type"] == "None":
        return True
    if pods(cluster) is None:
        return unscaled(service["spec"]["rayClusterConfig"]) == unscaled(cluster["spec"])
    return pods(service) == pods(cluster)


def unscaled(spec):
    """A cluster without what starts no other (KubeRay's isClusterSpecHashEqual), its fields as
    KubeRay writes them, which leaves out what is empty and has a quantity's shortest form."""
    spec = json.loads(json.dumps(spec))
    spec.pop("upgradeStrategy", None)
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        for each in (*COUNTS, "replicas", "scaleStrategy"):
            group.pop(each, None)
        for each in ("tolerations", "schedulingGates"):
            group["template"]["spec"].pop(each, None)
    return as_written(spec)


def as_written(found, key=""):
    if isinstance(found, list):
        return [as_written(each) for each in found]
    if isinstance(found, dict):
        quantities = key in ("requests", "limits")
        whole = {
            name: as_written(each, "sizeLimit" if quantities else name)
            for name, each in found.items()
        }
        return {name: each for name, each in whole.items() if each}
    number = QUANTITY.fullmatch(str(found)) if key == "sizeLimit" else None
    return Fraction(number[1]) * UNITS[number[2]] if number else found


def pods(each):
    return each["metadata"].get("annotations", {}).get(POD_ANNOTATION)


def patch(wanted, running):
    """From what a cluster is to what it ought to be, as a JSON patch (RFC 6902)."""
    head = "/spec/headGroupSpec"
    changes = tolerations(wanted["headGroupSpec"], running["headGroupSpec"], head)
    groups = {each["groupName"]: each for each in wanted["workerGroupSpecs"]}
    for number, now in enumerate(running["workerGroupSpecs"]):
        group = groups.get(now["groupName"])
        if group is None:
            continue
        place = f"/spec/workerGroupSpecs/{number}"
        numbers = {each: group[each] for each in COUNTS}
        numbers["replicas"] = group["replicas"]
        if wanted.get("enableInTreeAutoscaling"):
            # Between the bounds their number is the autoscaler's.
            least, most = (group[each] for each in COUNTS)
            numbers["replicas"] = min(max(now.get("replicas", least), least), most)
        new = [
            {"op": "add", "path": f"{place}/{field}", "value": value}
            for field, value in numbers.items()
            if now.get(field) != value
        ]
        new += tolerations(group, now, place)
        if new:
            same = {"op": "test", "path": f"{place}/groupName", "value": now["groupName"]}
            changes += [same, *new]
    return changes


def tolerations(wanted, running, place):
    path = f"{place}/template/spec/tolerations"
    want = wanted["template"]["spec"].get("tolerations", [])
    have = running["template"]["spec"].get("tolerations", [])
    if want == have:
        return []
    return [{"op": "add", "path": path, "value": want} if want else {"op": "remove", "path": path}]


def asker(folder="/var/run/secrets/kubernetes.io/serviceaccount"):
    """Asks the Kubernetes API as the pod's service account."""
    with open(f"{folder}/token") as file:
        token = file.read().strip()
    with open(f"{folder}/namespace") as file:
        namespace = file.read().strip()
    host, port = (os.environ[f"KUBERNETES_SERVICE_{each}"] for each in ("HOST", "PORT"))
    host = f"[{host}]" if ":" in host else host
    root = f"https://{host}:{port}/apis/ray.io/v1/namespaces/{namespace}"
    context = ssl.create_default_context(cafile=f"{folder}/ca.crt")

    def ask(method, resource, name, body=None):
        headers = {
            "authorization": f"Bearer {token}",
            "content-type": "application/json-patch+json",
        }
        data = None if body is None else json.dumps(body).encode()
        url = f"{root}/{resource}/{name}"
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            sys.exit(f"{method} {resource}/{name}: {error.code}: {error.read().decode()}")

    return ask


if __name__ == "__main__":
    apply(asker(), os.environ["NAME"])
