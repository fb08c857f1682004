"""`k8s/`: the base is the chart, and what `kubectl kustomize` makes of each overlay is as sound."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from deployments.control.serve_config import serve_config
from deployments.settings_files.load import load
from tests.kube.chart import ROOT, Object, cluster_of, ray_service, serve_config_of
from tests.kube.crds import Crds
from tests.kube.kustomize_base import base
from tests.kube.ray_rules import node_types
from tests.kube.verdict import complaints

OVERLAYS = ROOT / "k8s" / "overlays"
NAMES = sorted(path.name for path in OVERLAYS.iterdir())


@pytest.fixture(scope="module")
def built() -> dict[str, list[Object]]:
    if shutil.which("kubectl") is None:
        pytest.skip("KUSTOMIZATIONS ARE NOT CHECKED: no kubectl")
    return {name: _kustomized(OVERLAYS / name) for name in NAMES}


def _kustomized(folder: Path) -> list[Object]:
    done = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def test_the_base_is_the_chart() -> None:
    for path, text in base().items():
        assert path.read_text() == text, f"{path}: python -m tests.kube.kustomize_base"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wrong_with_an_overlay(
    built: dict[str, list[Object]], name: str, crds_if_there: Crds | None
) -> None:
    settings = yaml.safe_load((OVERLAYS / name / "settings.yaml").read_text())
    assert complaints(built[name], settings, crds_if_there) == []
    namespaces = {each["metadata"].get("namespace") for each in built[name]} - {None}
    assert namespaces == {"headrace"}


@pytest.mark.parametrize("name", NAMES)
def test_an_overlay_serves_its_settings_file(built: dict[str, list[Object]], name: str) -> None:
    wanted = serve_config(load(OVERLAYS / name / "settings.yaml", here=False, absolute=False))
    assert serve_config_of(built[name]) == wanted


def test_the_small_cluster_has_no_autoscaler_and_little_of_everything(
    built: dict[str, list[Object]],
) -> None:
    cluster = cluster_of(built["cpu-kind"])
    assert cluster["enableInTreeAutoscaling"] is False
    types = node_types(cluster)
    assert {name: each["resources"]["CPU"] for name, each in types.items()} == {
        "headgroup": 0, "gateways": 0, "cpu": 1,
    }  # fmt: skip


def test_the_mig_cluster_has_slices_that_ray_counts(built: dict[str, list[Object]]) -> None:
    types = node_types(cluster_of(built["gpu-mig"]))
    assert types["mig-1g"]["resources"]["GPU"] == 1
    assert types["mig-1g"]["resources"]["mig_1g_18gb"] == 1
    assert types["gateways"]["min_workers"] == 2
    images = set(yaml.safe_dump(ray_service(built["gpu-mig"])).split()) & {
        "headrace:0.1.0", "registry.example.org/headrace:0.1.0-cuda",
    }  # fmt: skip
    assert images == {"registry.example.org/headrace:0.1.0-cuda"}
