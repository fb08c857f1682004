"""The chart's pods as containers of the image, and what it costs when one of them is killed.

Two pods of gateways and two of models, each of which has room for one of the model's two replicas.
HEADRACE_TEST_IMAGE names the image (`make test-image`).
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.cluster.container_nodes import ulimits
from tests.cluster.pod_nodes import PodNode
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
_MEMORY = "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"
_QUOTA = "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu.max"  # of each 100 ms, in µs
_SETTLE_S = 3.0
_ANSWER_S = 30.0  # docs/reliability.md: for how long a request waits for a replica
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
        memory, quota = (int(_read(pod, paths)) for paths in (_MEMORY, _QUOTA))
        limits = pod.container["resources"]["limits"]
        assert memory == quantity(limits["memory"])
        assert quota == quantity(limits["cpu"]) * 100_000
        pid = pod.machine.run("pgrep", "--full", "--oldest", "raylet/raylet").stdout.strip()
        status = pod.machine.run("cat", f"/proc/{pid}/status").stdout
        said = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert said["Uid"].split() == said["Gid"].split() == ["10001"] * 4
        assert {int(said[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {0}
        assert (said["NoNewPrivs"], said["Seccomp"]) == ("1", "2")
        assert " / overlay ro," in pod.run("cat", "/proc/self/mounts").stdout


@pytest.mark.parametrize("user", ["10001:10001", "1000730000:0"])
def test_the_image_serves_a_user_that_it_does_not_know(user: str) -> None:
    """As OpenShift gives each project users of its own, all of group 0."""
    words = [
        "podman", "--runtime=runc", "--cgroup-manager=cgroupfs", "run", "--rm", "--pull=never",
        "--network=none", *ulimits(), "--cap-drop=all", f"--user={user}", IMAGE, "sh", "-c",
        'touch ~/a /var/cache/headrace/a && echo "$HOME" && headrace --version',
    ]  # fmt: skip
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=120)
    home, version = done.stdout.splitlines()[:2]
    assert home == "/tmp"
    assert version.startswith("headrace, version")


def test_no_process_compiles_what_the_image_has_compiled(release: Release) -> None:
    """By hashes: an image's files have other times than when they were compiled."""
    with_times = release.nodes.head.run("python", "-c", _COUNTS).stdout.split()
    assert with_times == ["0"]


@pytest.mark.parametrize(("group", "name"), [("cpu", MODEL), ("gateways", GATEWAY)])
def test_a_killed_container_fails_no_caller_of_other_pods(release, group, name) -> None:
    """All its processes at once, as for want of memory; the operator makes another pod. What was
    under way on it waits for another replica."""
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
    assert took_s[-1] < _ANSWER_S


def _read(pod: PodNode, paths: Sequence[str]) -> str:
    """The first word of whichever file is there."""
    return pod.run("sh", "-c", f"cat {' '.join(paths)} 2> /dev/null || true").stdout.split()[0]


def _spread(release: Release, name: str, group: str) -> bool:
    """Whether each pod of the group has one of that deployment's replicas."""
    places = sorted(ip for ip, _ in release.nodes.replicas().get(name, ()))
    return places == sorted(each.ip for each in release.nodes.of_group(group))
