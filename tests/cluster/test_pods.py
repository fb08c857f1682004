"""What the kubelet of the tests does of a pod, without Ray."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.machines import CannotMakeMachines, Lab
from tests.cluster.pod_mounts import UnknownVolume, publish, script
from tests.cluster.pod_nodes import (
    PodNode,
    Stored,
    as_user,
    check_user,
    environment,
    expanded,
)

STORED = Stored(
    {"keys": {"acme.yaml": "a: 1"}, "token": {"auth_token": "t0ken"}},
    {"more": {"b.yaml": "b: 2"}},
)
PROGRAM = "/usr/local/bin/headrace-of-a-test"  # this machine may have the real one
TOKEN = {"name": "token", "key": "auth_token"}
SOURCES = [{"secret": {"name": "keys"}}, {"configMap": {"name": "more"}}]
SECURITY = {
    "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}  # fmt: skip


def of_field(path: str) -> dict[str, Any]:
    return {"fieldRef": {"fieldPath": path}}


POD: dict[str, Any] = {
    "metadata": {"name": "a-pod", "namespace": "serving", "labels": {"ray.io/group": "cpu"}},
    "spec": {
        "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000},
        "containers": [
            {
                "name": "ray",
                "command": ["/bin/bash", "-c", "--"],
                "args": ["echo said; exec sleep 60"],
                "ports": [],
                "securityContext": SECURITY,
                "env": [
                    {"name": "GROUP", "valueFrom": of_field("metadata.labels['ray.io/group']")},
                    {"name": "NAME", "valueFrom": of_field("metadata.name")},
                    {"name": "TOKEN", "valueFrom": {"secretKeyRef": TOKEN}},
                    {"name": "BOTH", "value": "$(GROUP)-$(NOBODY)-$$(GROUP)"},
                ],
                "volumeMounts": [
                    {"name": "tmp", "mountPath": "/tmp"},
                    {"name": "shared", "mountPath": "/dev/shm"},
                    {"name": "cache", "mountPath": "/var/cache/headrace-of-a-test"},
                    {"name": "files", "mountPath": "/etc/headrace-of-a-test/files"},
                ],
            }
        ],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "shared", "emptyDir": {"medium": "Memory", "sizeLimit": "32Mi"}},
            {"name": "cache", "emptyDir": {"sizeLimit": "8Mi"}},
            {"name": "files", "projected": {"sources": SOURCES}},
        ],
    },
}  # fmt: skip


def test_variables_come_from_fields_secrets_and_those_before_them() -> None:
    (container,) = POD["spec"]["containers"]
    found = environment(POD, container, STORED)
    assert (found["GROUP"], found["NAME"], found["TOKEN"]) == ("cpu", "a-pod", "t0ken")
    assert found["BOTH"] == "cpu-$(NOBODY)-$(GROUP)"


def test_a_secret_that_is_not_there_is_an_error() -> None:
    with pytest.raises(KeyError):
        environment(POD, POD["spec"]["containers"][0], Stored({}, {}))


@pytest.mark.parametrize(
    ("text", "found"), [("$(A)", "1"), ("$$(A)", "$(A)"), ("$$$(A)", "$1"), ("$A $(B", "$A $(B")]
)
def test_references_are_expanded_as_kubernetes_does(text: str, found: str) -> None:
    assert expanded(text, {"A": "1"}) == found


def test_files_change_all_at_once_and_as_often_as_one_likes(tmp_path: Path) -> None:
    for text in ("one", "two", "three"):
        publish(tmp_path, {"acme.yaml": text, "b.yaml": text})
        assert {(tmp_path / name).read_text() for name in ("acme.yaml", "b.yaml")} == {text}
    assert len([each for each in tmp_path.iterdir() if each.is_dir()]) == 2  # ..data and its target
    assert (tmp_path / "acme.yaml").readlink() == Path("..data/acme.yaml")


def test_a_volume_that_takes_a_cluster_is_refused() -> None:
    volumes = [*POD["spec"]["volumes"][:3], {"name": "files", "persistentVolumeClaim": {}}]
    pod = POD | {"spec": POD["spec"] | {"volumes": volumes}}
    with pytest.raises(UnknownVolume, match="files is a persistentVolumeClaim"):
        script(pod, Path(PROGRAM), {})


def test_a_container_that_drops_nothing_keeps_its_capabilities() -> None:
    container = {"securityContext": {"allowPrivilegeEscalation": True}}
    words = as_user(POD, container)
    assert not [word for word in words if "caps" in word or "no-new-privs" in word]


def test_who_may_not_become_the_pods_user_is_told_so() -> None:
    check_user(1000, "         0          0 4294967295\n")
    with pytest.raises(CannotMakeMachines, match="user 1000"):
        check_user(1000, "         0       1000          1\n")


@pytest.fixture(scope="module")
def pod() -> Iterator[PodNode]:
    try:
        with Lab() as lab:
            node = PodNode(lab, POD, STORED, {"head.example": "10.0.0.9"}, PROGRAM)
            end = time.monotonic() + 20
            while "said" not in node.log:
                assert time.monotonic() < end
                time.sleep(0.02)
            yield node
    except CannotMakeMachines as reason:
        pytest.skip(str(reason))


def out(pod: PodNode, line: str) -> str:
    return pod.run("sh", "-c", line).stdout.strip()


@pytest.mark.cluster
@pytest.mark.integration
def test_it_runs_as_its_user_without_any_capability(pod: PodNode) -> None:
    (pid,) = pod.processes("sleep 60")
    status = out(pod, f"cat /proc/{pid}/status")
    said = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert said["Uid"].split() == said["Gid"].split() == ["1000"] * 4
    assert {int(said[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {0}
    assert said["NoNewPrivs"] == "1"


@pytest.mark.cluster
@pytest.mark.integration
@pytest.mark.parametrize("folder", ["/", "/etc", "/usr/local/bin", "/var/tmp", "/var/cache"])
def test_nothing_but_its_volumes_can_be_written_even_by_root(pod: PodNode, folder: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        pod.machine.run("touch", f"{folder}/headrace-of-a-test-x")
    assert "Read-only file system" in refused.value.stderr


@pytest.mark.cluster
@pytest.mark.integration
def test_its_volumes_are_there_with_their_sizes_and_this_machine_has_none_of_them(pod) -> None:
    for folder, mib in (("/dev/shm", 32), ("/var/cache/headrace-of-a-test", 8)):
        assert out(pod, f"df -m --output=size {folder} | tail -1") == str(mib)
        out(pod, f"touch {folder}/x")
    out(pod, "touch /tmp/x")
    assert not Path("/var/cache/headrace-of-a-test").exists()
    assert not Path("/etc/headrace-of-a-test").exists()
    assert not Path(PROGRAM).exists()
    assert out(pod, f"readlink {PROGRAM}").endswith(f"/bin/{Path(PROGRAM).name}")


@pytest.mark.cluster
@pytest.mark.integration
def test_its_files_are_read_and_a_change_of_them_is_seen(pod: PodNode) -> None:
    folder = "/etc/headrace-of-a-test/files"
    assert out(pod, f"cat {folder}/acme.yaml {folder}/b.yaml") == "a: 1b: 2"
    pod.publish(Stored({**STORED.secrets, "keys": {"acme.yaml": "a: 3"}}, STORED.config_maps))
    assert out(pod, f"cat {folder}/acme.yaml {folder}/b.yaml") == "a: 3b: 2"


@pytest.mark.cluster
@pytest.mark.integration
def test_it_knows_its_own_name_its_services_and_no_others(pod: PodNode) -> None:
    assert out(pod, "hostname") == "a-pod"
    assert out(pod, "getent hosts head.example").split()[0] == "10.0.0.9"
    assert out(pod, "getent hosts a-pod").split()[0] == pod.ip
    with pytest.raises(subprocess.CalledProcessError):
        pod.run("getent", "hosts", "nobody.example")


@pytest.mark.cluster
@pytest.mark.integration
def test_the_interpreter_and_headrace_can_be_used_by_its_user(pod: PodNode) -> None:
    assert out(pod, "python -c 'import deployments, sys; print(sys.version_info[0])'") == "3"
