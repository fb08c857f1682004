"""One Ray node in a built image, started, probed and given its applications as KubeRay would, with
the environment of the chart's own pods; then a prediction through HAProxy.

Sources: KubeRay 1.7.0, `common/pod.go` (login shell, `ulimit`, wget piped into grep).
"""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import Any

from tests.image import pod
from tests.image.folders import Built
from tests.kube.chart import Object, cluster_of, objects, serve_config_of

_START_S = 120
_VALUES: dict[str, Any] = {
    "models": {"device": {"runtime": "synthetic", "options": {"base_ms": 2}}},
    "workerGroups": [{"name": "cpu", "cpu": 4, "memory": "4Gi"}],
    # One node has all roles here.
    "gateway": {"replicas": 1},
}
_START = {
    "head": "",
    "num-cpus": "8",
    "num-gpus": "0",
    "dashboard-host": "0.0.0.0",
    "dashboard-agent-listen-port": "52365",
    "object-store-memory": str(256 << 20),
    "labels": "headrace.io/role=gateway",
}
_ASK = "wget --tries 1 -T 10 -q -O- http://localhost:{}"
_PROBES = {
    "raylet": _ASK.format("52365/api/local_raylet_healthz | grep success"),
    "head": _ASK.format("8265/api/gcs_healthz | grep success"),
    "serve": _ASK.format("8000/-/healthz | grep success"),
}
_PUT = """
import json, os, urllib.request
request = urllib.request.Request("http://localhost:8265/api/serve/applications/", method="PUT",
    data=os.environ["SERVE_CONFIG"].encode(), headers={"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=60).status)
"""
_BODY = {
    "inputs": [{"name": "ids", "datatype": "INT64", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}]
}
_PREDICT = (
    "wget -q -O- --header 'Content-Type: application/json' --post-data "
    f"{shlex.quote(json.dumps(_BODY))} http://localhost:8000/v2/models/device/infer"
)
_SCRIPT = f"""
ray start --block {" ".join(f"--{k}={v}" if v else f"--{k}" for k, v in _START.items())} \
  > /tmp/ray.log 2>&1 &
until_ok() {{
  for _ in $(seq {_START_S}); do
    bash -c "$1" > /tmp/answer 2>&1 && echo "yes: $1" && return; sleep 1
  done
  echo "never: $1"; cat /tmp/answer; tail -20 /tmp/ray.log; exit 1; }}
until_ok {shlex.quote(_PROBES["raylet"])}
until_ok {shlex.quote(_PROBES["head"])}
python -c {shlex.quote(_PUT)}
until_ok {shlex.quote(_PROBES["serve"])}
until_ok "wget -q -O- http://localhost:8000/readyz"
{_PREDICT}; echo
echo "haproxy: $(grep -lz haproxy.cfg /proc/[0-9]*/cmdline 2>/dev/null | wc -l)"
"""


def serves(built: Built) -> str:
    """Raises AssertionError, with what was said."""
    found = objects(_VALUES)
    told = {each["name"]: each["value"] for each in environment(found) if "value" in each} | {
        "SERVE_CONFIG": json.dumps(serve_config_of(found))
    }
    script = f"ulimit -n 65536; {_SCRIPT}"
    try:
        done = pod.run(built, ["bash", "-lc", script], told, timeout_s=3 * _START_S)
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"not within {late.timeout} s: {late.stdout!r}") from None
    answer = done.stdout
    assert '"data":[6.0,15.0]' in answer, f"{answer}{done.stderr}"[-3000:]
    assert "haproxy: 0" not in answer, "no HAProxy runs"
    return f"{answer.count('yes: ')} probes, {answer.splitlines()[-2][:120]}"


def environment(found: list[Object]) -> list[Object]:
    """Of the gateways' pod, which has all that a worker has."""
    (group, *_) = cluster_of(found)["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    variables: list[Object] = container["env"]
    return variables
