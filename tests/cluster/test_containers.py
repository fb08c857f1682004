"""The chart's pods as containers of the image, and what it costs when one of them is killed.

Two pods of gateways and two of models, each of which has room for one of the model's two replicas.
HEADRACE_TEST_IMAGE names the image (`make test-image`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.cluster.releases import IDS, IMAGE, KEY, Release, bearer, released
from tests.cluster.steady_load import SteadyLoad, infer
from tests.kube.chart import values_of
from tests.kube.operator_pods import quantity

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.integration,
    pytest.mark.skipif(not IMAGE, reason="HEADRACE_TEST_IMAGE names no image"),
]

VALUES = """
models:
  slow:
    runtime: synthetic
    slo: {latency_ms: 20000}
    options: {base_ms: 50}
    replicas: {count: 2, num_cpus: 1}
gateway: {replicas: 2}
workerGroups: [{name: cpu, minReplicas: 2, cpu: 1, memory: 3Gi, objectStore: 128Mi}]
"""
GATEWAY, MODEL = "gateway/gateway", "model-slow/model"
_LIMITS = "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"
_SETTLE_S = 3.0
# Compiled files of Python that name the time of their source (PEP 552).
_COUNTS = """
import pathlib
folders = [pathlib.Path("/usr/lib/python3.11"), pathlib.Path("/usr/local/lib")]
every = [each for folder in folders for each in folder.rglob("*.pyc")]
assert len(every) > 5_000
print(sum(each.open("rb").read(8)[4] & 1 == 0 for each in every))
"""


@pytest.fixture(scope="module")
def release() -> Iterator[Release]:
    with released(values_of(VALUES)) as made:
        yield made


def test_each_of_both_pods_of_a_kind_has_one_replica_and_its_ingress_answers(release) -> None:
    nodes = release.nodes
    for name, group in ((GATEWAY, "gateways"), (MODEL, "cpu")):
        assert _spread(release, name, group)
    assert len(nodes.urls()) == 4
    for url in nodes.urls():
        assert infer(url, "slow", IDS, **bearer(KEY)).status_code == 200


def test_the_kernel_holds_each_container_to_what_its_pod_says(release: Release) -> None:
    for pod in release.nodes.pods:
        limit = pod.run("sh", "-c", f"cat {' '.join(_LIMITS)} 2> /dev/null || true").stdout
        assert int(limit) == quantity(pod.container["resources"]["limits"]["memory"])
        pid = pod.machine.run("pgrep", "--full", "--oldest", "raylet/raylet").stdout.strip()
        status = pod.machine.run("cat", f"/proc/{pid}/status").stdout
        said = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert said["Uid"].split() == said["Gid"].split() == ["10001"] * 4
        assert {int(said[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {0}
        assert (said["NoNewPrivs"], said["Seccomp"]) == ("1", "2")
        assert " / overlay ro," in pod.run("cat", "/proc/self/mounts").stdout


def test_no_process_compiles_what_the_image_has_compiled(release: Release) -> None:
    """By hashes: an image's files have other times than when they were compiled."""
    with_times = release.nodes.head.run("python", "-c", _COUNTS).stdout.split()
    assert with_times == ["0"]


@pytest.mark.parametrize(("group", "name"), [("cpu", MODEL), ("gateways", GATEWAY)])
def test_a_killed_container_costs_callers_of_other_pods_nothing(release, group, name) -> None:
    """All its processes at once, as for want of memory; the operator makes another pod."""
    nodes, (hit, _) = release.nodes, release.nodes.of_group(group)
    urls = [f"{each.url}:{each.ports['serve']}" for each in nodes.endpoints() if each is not hit]
    load = SteadyLoad(urls, "slow", callers=6, headers=bearer(KEY))
    with load:
        load.settle(_SETTLE_S)
        hit.kill()
        killed_at = time.monotonic()
        nodes.until_all_are_ready()
        nodes.until(lambda: _spread(release, name, group), "one replica on each")
        nodes.until_it_runs()
        whole_s = time.monotonic() - killed_at
        time.sleep(_SETTLE_S)
    new = next(each for each in nodes.of_group(group) if each.name.startswith(hit.name))
    took_s = sorted(each.took_s for each in load.outcomes)
    print(f"killed {hit.name}: whole again after {whole_s:.0f} s, {new.name} ready after "
          f"{nodes.ready_s[new.name]:.0f} s; answered {load.answered}, failed "
          f"{len(load.failures)}, over a second {sum(each > 1 for each in took_s)}, longest "
          f"{took_s[-1]:.1f} s")  # fmt: skip
    assert load.reasons() == {}
    assert load.answered > 100


def _spread(release: Release, name: str, group: str) -> bool:
    """Whether each pod of the group has one of that deployment's replicas."""
    places = sorted(ip for ip, _ in release.nodes.replicas().get(name, ()))
    return places == sorted(each.ip for each in release.nodes.of_group(group))
