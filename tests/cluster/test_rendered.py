"""The chart's RayService runs: Helm renders it, pods start on three machines as a kubelet would
start them, an operator's PUT does the rest. Nothing of ours is called but what the RayService says.

What that proves and what not: docs/kubernetes.md.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from deployments.gateway.tenancy.tenants import new_key
from tests.cluster.pod_nodes import Stored
from tests.cluster.ray_nodes import until
from tests.cluster.releases import (
    BATCH_KEY,
    HASH,
    IDS,
    KEY,
    TENANTS_PATH,
    Release,
    bearer,
    released,
    secret,
)
from tests.cluster.steady_load import SteadyLoad, infer
from tests.kube.chart import values_of
from tests.kube.wiring import selects

pytestmark = [pytest.mark.cluster, pytest.mark.integration]

BEFORE_MS, AFTER_MS = 20, 60  # `accept.max_cost_ratio` refuses five times as long
CHANGED, ANCHOR = "model-quick/model", "model-quick/anchor"
OF_THE_AUTOSCALER = "as-metrics"  # whose container needs a Kubernetes API
VALUES = f"""
models:
  quick: {{runtime: synthetic, slo: {{latency_ms: 20000}}, options: {{base_ms: {BEFORE_MS}}}}}
  slow: {{runtime: synthetic, slo: {{latency_ms: 20000}}, options: {{base_ms: 50}}}}
workerGroups: [{{name: cpu, minReplicas: 1, cpu: 4, memory: 3Gi, objectStore: 128Mi}}]
podMonitors: {{enabled: true}}
"""
Changes = dict[Path, int | None]
_CHANGE_S = 60.0
_SETTLE_S = 2.0


def changes() -> Changes:
    """When this machine's own files were changed, of the paths that pods have files at; a machine
    with Headrace on it has some."""
    paths = [Path(TENANTS_PATH), Path("/usr/local/bin/headrace-haproxy")]
    return {path: path.lstat().st_mtime_ns if path.exists() else None for path in paths}


@pytest.fixture(scope="module")
def of_this_machine() -> Changes:
    """Before any pod is started."""
    return changes()


@pytest.fixture(scope="module")
def release(of_this_machine: Changes) -> Iterator[Release]:
    with released(values_of(VALUES)) as made:
        yield made


def test_the_pods_are_the_three_of_the_chart_and_all_are_ready(release: Release) -> None:
    nodes = release.nodes
    assert [each.labels["ray.io/group"] for each in nodes.pods] == [
        "headgroup", "gateways", "cpu",
    ]  # fmt: skip
    assert all(each.passes("livenessProbe") for each in nodes.pods)
    assert nodes.endpoints() == nodes.workers


def test_gateways_and_models_are_where_their_groups_are(release: Release) -> None:
    nodes = release.nodes
    (gateways,), (cpu,) = nodes.of_group("gateways"), nodes.of_group("cpu")
    places = {name: {ip for ip, _ in each} for name, each in nodes.replicas().items()}
    assert places["gateway/gateway"] == {gateways.ip}
    assert places["model-quick/model"] == places["model-slow/model"] == {cpu.ip}


@pytest.mark.parametrize("model", ["quick", "slow"])
@pytest.mark.parametrize("key", [KEY, BATCH_KEY], ids=["acme", "batch"])
def test_a_tenants_key_gets_an_answer_at_every_endpoint(release, model: str, key: str) -> None:
    for url in release.nodes.urls():
        answer = infer(url, model, IDS, **bearer(key))
        assert answer.status_code == 200, answer.text
        assert answer.json()["outputs"][0]["data"] == [sum(IDS)]


def test_another_key_and_none_are_401(release: Release) -> None:
    for url in release.nodes.urls():
        said = [infer(url, "quick", IDS, **headers) for headers in ({}, bearer(new_key()[0]))]
        assert [answer.status_code for answer in said] == [401, 401]


def test_every_port_that_a_pod_monitor_asks_has_metrics(release: Release) -> None:
    asked = [
        f"{pod.url}:{pod.ports[endpoint['port']]}{endpoint.get('path', '/metrics')}"
        for monitor in release.store.of_kind("PodMonitor").values()
        for endpoint in monitor["spec"]["podMetricsEndpoints"]
        if endpoint["port"] != OF_THE_AUTOSCALER
        for pod in release.nodes.pods
        if selects(monitor["spec"]["selector"], pod.pod)
    ]
    assert len(asked) == 5, asked
    assert {url: httpx.get(url).status_code for url in asked} == dict.fromkeys(asked, 200)


def frames(release: Release, model: str) -> dict[str, float]:
    """Counters of the gateway's channel to the model's replicas."""
    (pod,) = release.nodes.of_group("gateways")
    text = httpx.get(f"{pod.url}:{pod.ports['gateway-0']}/metrics").text
    rows = [line for line in text.splitlines() if line.startswith("headrace_channel_")]
    return {row.split("{")[0]: float(row.split()[-1]) for row in rows if f'model="{model}"' in row}


@pytest.mark.parametrize("model", ["quick", "slow"])
def test_requests_travel_on_the_channel_from_pod_to_pod(release: Release, model: str) -> None:
    def sent() -> float:
        return frames(release, model)["headrace_channel_sent_frames_total"]

    before = sent()
    for _ in range(5):
        infer(release.nodes.urls()[0], model, IDS, **bearer(KEY))
    until(lambda: sent() >= before + 5, 10, "five frames were sent")
    assert frames(release, model)["headrace_channel_connections"] == 1


def test_every_process_is_the_pods_user_and_writes_nothing_but_its_volumes(release) -> None:
    for pod in release.nodes.pods:
        users = pod.machine.run("ps", "axo", "uid,args").stdout.splitlines()[1:]
        ray = [line.split()[0] for line in users if "ray" in line]
        assert len(ray) > 3
        assert set(ray) == {str(pod.pod["spec"]["securityContext"]["runAsUser"])}
        with pytest.raises(subprocess.CalledProcessError, match="exit status 1"):
            pod.run("touch", "/etc/x")
        assert "/dev/shm" not in pod.log, "the object store has no room where it ought to be"


def test_haproxy_is_the_images_program_with_what_the_pods_say(release: Release) -> None:
    for pod in release.nodes.workers:
        *_, line = pod.machine.run(
            "pgrep", "--full", "--list-full", "bin/haproxy -db -f"
        ).stdout.splitlines()
        written = pod.run("cat", line.split(" -f ")[1].split()[0]).stdout
        assert "# corrected by headrace-haproxy" in written
        assert f"bind 0.0.0.0:{pod.ports['serve']}" in written


def _changed(release: Release, change: Callable[[], None], ms: int, what: str) -> None:
    """One model alone, under load: `quick` takes `ms` afterwards."""
    nodes, before, ran = release.nodes, release.service, release.nodes.replicas()
    change()
    old, new = before["spec"], release.service["spec"]
    assert {name for name in new if old[name] != new[name]} == {"serveConfigV2"}
    load = [SteadyLoad(nodes.urls(), m, callers=4, headers=bearer(KEY)) for m in ("quick", "slow")]
    with nodes.probed() as probes, load[0], load[1]:
        time.sleep(_SETTLE_S)
        put_at = time.monotonic()
        nodes.put(release.service)
        # While an application is made, Serve lists none of its deployments.
        until(lambda: bool(nodes.replicas().get(CHANGED, set()) - ran[CHANGED]), _CHANGE_S, what)
        until(lambda: not nodes.replicas().get(CHANGED, set()) & ran[CHANGED], _CHANGE_S, what)
        nodes.until_it_runs()
        took_s = time.monotonic() - put_at
        time.sleep(_SETTLE_S)
    longest_s = max(o.took_s for each in load for o in each.outcomes)
    print(f"{what}: {took_s:.1f} s, answered {[each.answered for each in load]}, failed "
          f"{[len(each.failures) for each in load]}, longest {longest_s:.2f} s, "
          f"readiness probes {len(probes)}, failed {probes.count(False)}")  # fmt: skip
    assert probes, "nobody asked whether the workers were ready"
    assert all(probes), probes
    assert [each.reasons() for each in load] == [{}, {}]
    assert all(each.answered > 100 for each in load)
    runs = nodes.replicas()
    changed = {name for name in runs if runs[name] != ran[name]}
    assert {CHANGED} <= changed <= {CHANGED, ANCHOR}
    assert ms <= release.served_ms() < ms + 40


def test_an_upgrade_of_one_model_under_load_fails_nothing_and_touches_no_other(release) -> None:
    assert release.served_ms() < AFTER_MS
    _changed(release, lambda: release.upgrade(AFTER_MS), AFTER_MS, "helm upgrade")


def test_a_rollback_under_load_fails_nothing_either(release: Release) -> None:
    assert release.served_ms() >= AFTER_MS, "the upgrade comes first"
    _changed(release, release.rollback, BEFORE_MS, "helm rollback")


def test_the_same_list_put_again_restarts_nothing(release: Release) -> None:
    """An operator that has restarted does not know what it had put."""
    ran = release.nodes.replicas()
    release.nodes.put(release.service)
    release.nodes.until_it_runs()
    assert release.nodes.replicas() == ran


def test_a_key_that_is_added_to_its_secret_is_valid_without_a_restart(release: Release) -> None:
    nodes = release.nodes
    ran, (key, hashed) = nodes.replicas(), new_key()
    url = nodes.urls()[0]
    assert infer(url, "quick", IDS, **bearer(key)).status_code == 401
    added = {**nodes.stored.secrets, "acme-keys": secret("acme", HASH, hashed)}
    for pod in nodes.pods:
        pod.publish(Stored(added, nodes.stored.config_maps))
    until(lambda: infer(url, "quick", IDS, **bearer(key)).status_code == 200, 10, "the new key")
    assert infer(url, "quick", IDS, **bearer(KEY)).status_code == 200
    assert nodes.replicas() == ran


def test_this_machine_has_nothing_of_the_pods(of_this_machine: Changes, release: Release) -> None:
    assert changes() == of_this_machine
