"""What copies models' files into a claim."""

from __future__ import annotations

import os
import runpy
import shutil
from pathlib import Path

import pytest

from tests.kube.chart import CHART, Object, Values, objects
from tests.kube.test_planted_faults import of_kind

FILL = runpy.run_path(str(CHART / "files" / "fill.py"))["fill"]
EGRESS = [{"ports": [{"port": 443}]}]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    folder = tmp_path / "store" / "production"
    (folder / "minilm").mkdir(parents=True)
    (folder / "minilm" / "model.onnx").write_bytes(b"weights")
    (folder / "list.txt").write_bytes(b"minilm")
    return folder


def test_a_folder_is_copied_and_what_is_there_is_not_copied_again(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "models"
    FILL(f"file://{stored}/", str(target))
    assert (target / "minilm" / "model.onnx").read_bytes() == b"weights"
    assert (target / "list.txt").read_bytes() == b"minilm"
    assert len(capsys.readouterr().out.splitlines()) == 2
    (stored / "minilm" / "model.onnx").write_bytes(b"other weights")
    FILL(f"file://{stored}", str(target))
    assert (target / "minilm" / "model.onnx").read_bytes() == b"other weights"
    assert capsys.readouterr().out.splitlines() == [f"{stored}/minilm/model.onnx: 13 bytes"]
    assert [each.name for each in target.rglob("*.part")] == []


def test_a_file_of_the_same_size_is_copied_where_it_is_another(
    stored: Path, tmp_path: Path
) -> None:
    model, copied = stored / "minilm" / "model.onnx", tmp_path / "models" / "minilm" / "model.onnx"
    FILL(f"file://{stored}", str(tmp_path / "models"))
    model.write_bytes(b"WEIGHTS")
    os.utime(model, (1, 1))
    FILL(f"file://{stored}", str(tmp_path / "models"))
    assert copied.read_bytes() == b"WEIGHTS"
    elsewhere = shutil.copytree(stored, stored.with_name("staging"))
    (elsewhere / "minilm" / "model.onnx").write_bytes(b"trained")
    os.utime(elsewhere / "minilm" / "model.onnx", (1, 1))
    FILL(f"file://{elsewhere}", str(tmp_path / "models"))
    assert copied.read_bytes() == b"trained"
    FILL(f"file://{stored}", str(tmp_path / "models"))
    assert copied.read_bytes() == b"WEIGHTS"


def test_what_somebody_else_put_there_is_replaced(stored: Path, tmp_path: Path) -> None:
    """As a copy of an earlier chart's job, of which nobody noted the version."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "list.txt").write_bytes(b"unsaid")
    FILL(f"file://{stored}", str(tmp_path / "models"))
    assert (tmp_path / "models" / "list.txt").read_bytes() == b"minilm"


def test_an_address_without_files_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="has no files"):
        FILL(f"file://{tmp_path}/empty", str(tmp_path / "models"))


def job(found: list[Object]) -> Object:
    (each,) = [
        each
        for each in found
        if each["kind"] == "Job" and "helm.sh/hook" not in str(each["metadata"])
    ]
    return each


def filled(plain: Values, **more: object) -> list[Object]:
    storage = {"type": "pvc", "pvc": {"from": "s3://models/production/"}}
    credentials = {"envFrom": [{"secretRef": {"name": "s3"}}]}
    policy = {"networkPolicy": {"egress": EGRESS}}
    return objects(plain | {"storage": storage} | credentials | policy | more)


def test_the_job_may_write_where_replicas_read(plain: Values) -> None:
    found = filled(plain)
    spec = job(found)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["args"][1:] == ["s3://models/production/", "/models"]
    assert {"name": "models", "mountPath": "/models"} in container["volumeMounts"]
    claim = {"name": "models", "persistentVolumeClaim": {"claimName": "demo-headrace-models"}}
    assert claim in spec["volumes"]
    assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
    assert spec["serviceAccountName"] == "demo-headrace", "a cloud's identity is this account's"
    claims = of_kind(found, "PersistentVolumeClaim")["spec"]
    assert claims["accessModes"] == ["ReadWriteMany"]
    (policy,) = [each for each in found if each["metadata"]["name"] == "demo-headrace-files"]
    assert policy["spec"]["egress"] == EGRESS
    assert "fill" in policy["spec"]["podSelector"]["matchExpressions"][0]["values"]


def test_the_environment_of_all_is_the_jobs_too_and_each_name_is_there_once(plain: Values) -> None:
    env = [{"name": "HOME", "value": "/home"}, {"name": "FROM", "value": "mine"}]
    (container,) = job(filled(plain, env=env))["spec"]["template"]["spec"]["containers"]
    assert container["env"] == env
    assert container["args"][1:] == ["s3://models/production/", "/models"]


def test_a_changed_job_is_another_job(plain: Values) -> None:
    """Kubernetes refuses to change one."""
    names = {job(filled(plain, image={"tag": tag}))["metadata"]["name"] for tag in ("1", "1", "2")}
    assert len(names) == 2
    assert all(len(name) <= 63 for name in names)


def test_without_an_address_there_is_none(plain: Values) -> None:
    found = objects(plain | {"storage": {"type": "pvc"}})
    assert [each["metadata"]["name"] for each in found if each["kind"] == "Job"] == [
        "demo-headrace-check", "demo-headrace-scale",
    ]  # fmt: skip
