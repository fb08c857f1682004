"""`k8s/`: each folder is the chart, rendered, and what `kubectl kustomize` makes of it is sound."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from deployments.control.serve_config import serve_config
from deployments.settings_files.load import load
from tests.kube.chart import LOADER, ROOT, Object, cluster_of, ray_service, serve_config_of
from tests.kube.crds import Crds
from tests.kube.kustomizations import FOLDERS, values, written
from tests.kube.ray_rules import node_types
from tests.kube.verdict import complaints

PLACE = ROOT / "k8s"
NAMES = [folder.name for folder in FOLDERS]


@pytest.fixture(scope="module")
def built() -> dict[str, list[Object]]:
    if shutil.which("kubectl") is None:
        pytest.skip("KUSTOMIZATIONS ARE NOT CHECKED: no kubectl")
    return {folder.name: _kustomized(folder) for folder in FOLDERS}


def _kustomized(folder: Path) -> list[Object]:
    done = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.load_all(done.stdout, LOADER) if each]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda each: each.name)
def test_its_objects_are_the_charts(folder: Path) -> None:
    for path, text in written(folder).items():
        assert path.read_text() == text, f"{path}: python -m tests.kube.kustomizations"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wrong_with_what_kustomize_makes(
    built: dict[str, list[Object]], name: str, crds_if_there: Crds | None
) -> None:
    assert complaints(built[name], values(PLACE / name), crds_if_there) == []
    namespaces = {each["metadata"].get("namespace") for each in built[name]} - {None}
    assert namespaces == {"headrace"}


@pytest.mark.parametrize("name", NAMES)
def test_it_serves_its_settings_file(built: dict[str, list[Object]], name: str) -> None:
    wanted = serve_config(load(PLACE / name / "settings.yaml", here=False, absolute=False))
    assert serve_config_of(built[name]) == wanted


def test_the_small_cluster_has_no_autoscaler_and_little_of_everything(
    built: dict[str, list[Object]],
) -> None:
    cluster = cluster_of(built["cpu-kind"])
    assert "enableInTreeAutoscaling" not in cluster
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
