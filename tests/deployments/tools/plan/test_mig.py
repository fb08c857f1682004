"""`headrace plan mig` as a user calls it, and that what it writes is what others read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result

from deployments import cli
from deployments.settings.plain import parse

SCHEMA = Path(__file__).parents[4] / "helm" / "headrace" / "values.schema.json"
FILE = """\
models:
  small: {runtime: synthetic, replicas: {count: 5, num_gpus: 1, surge_percent: 0}}
  large:
    runtime: synthetic
    replicas:
      resources: {licence: 1}
      surge_percent: 0
      groups:
        - {name: gpu, count: 2, num_gpus: 1}
        - {name: cpu, count: 3, overflow: {after_ms: 50}}
  plain: {runtime: synthetic}
"""
NEEDS = ("--need", "small=9000", "--need", "large/gpu=30000")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(FILE)
    return path


def run(file: Path, *words: str, gpus: Sequence[str] = ("h100-80",)) -> Result:
    fleet = [word for gpu in gpus for word in ("--gpu", gpu)]
    return CliRunner().invoke(cli.main, ["plan", "mig", str(file), *fleet, *words])


def written(file: Path, *words: str, gpus: Sequence[str] = ("h100-80",)) -> list[dict]:
    """The files that `--to` writes."""
    folder = file.parent / "plan"
    result = run(file, *words, "--to", str(folder), gpus=gpus)
    assert result.exit_code == 0, result.output
    names = ("values.yaml", "mig-parted.yaml", "groups.yaml")
    files = (folder / name for name in names)
    return [yaml.safe_load(each.read_text()) for each in files if each.exists()]


def test_the_table_says_who_goes_where_and_what_is_left(file):
    result = run(file, *NEEDS)
    assert result.exit_code == 0, result.output
    assert "0   3g.40gb 4-7 large/gpu #0 30,000 40,448 10,448" in result.output
    assert "plain is not planned: requests no GPU (num_gpus)" in result.output
    assert "7 slices on 2 x h100-80: no fewer hold them" in result.output
    assert "room for" in result.output
    assert "mig.config=headrace-h100-80-0" in result.output


def test_worker_groups_are_the_charts(file):
    values, _, _ = written(file, *NEEDS)
    assert values["workerGroups"] == [
        {
            "name": "mig-1g-10gb", "minReplicas": 5, "maxReplicas": 5, "cpu": 2,
            "memory": "13Gi", "migProfile": "1g.10gb",
        },
        {
            "name": "mig-3g-40gb", "minReplicas": 2, "maxReplicas": 2, "cpu": 2,
            "memory": "34Gi", "migProfile": "3g.40gb",
        },
    ]  # fmt: skip


@pytest.mark.skipif(not SCHEMA.exists(), reason="helm/headrace is not there")
def test_the_charts_schema_takes_them(file):
    schema = json.loads(SCHEMA.read_text())
    planned, _, _ = written(file, *NEEDS)
    # As Helm does: laid over the chart's own values, and then looked at.
    own = yaml.safe_load(SCHEMA.with_name("values.yaml").read_text())
    values = {
        name: own[name] | part if isinstance(part, dict) else part for name, part in planned.items()
    }
    parts = {"$defs": schema["$defs"], "type": "object"}
    parts["properties"] = {name: schema["properties"][name] for name in values}
    jsonschema.validate(values, parts)
    values["workerGroups"][0]["replicas"] = 3
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, parts)


def test_pods_grow_with_what_a_model_takes_of_its_node_and_between_its_bounds(file):
    file.write_text(
        "models:\n  a:\n    runtime: synthetic\n    replicas: "
        "{min: 1, max: 4, num_gpus: 1, num_cpus: 3.5, memory_mib: 9000, surge_percent: 0}\n"
    )
    (group,) = written(file)[0]["workerGroups"]
    assert (group["minReplicas"], group["maxReplicas"]) == (1, 4)
    assert (group["cpu"], group["memory"]) == (4, "13Gi")


def test_the_layout_cuts_as_many_slices_as_the_worker_groups_ask_for(file):
    values, layout, _ = written(file, *NEEDS, "--per-node", "1")
    assert layout["version"] == "v1"
    cut: dict[str, int] = {}
    for devices in layout["mig-configs"].values():
        for each in devices:
            assert each["mig-enabled"] is True
            for name, number in each["mig-devices"].items():
                cut[name] = cut.get(name, 0) + number * len(each["devices"])
    assert cut == {each["migProfile"]: each["maxReplicas"] for each in values["workerGroups"]}
    assert values["migLayouts"]["configs"] == layout["mig-configs"]


def test_nodes_that_are_cut_alike_share_a_layout(file):
    words = ("--need", "small=30000", "--on", "large/gpu=7g.80gb", "--per-node", "1")
    layout = written(file, *words)[1]
    by_name = layout["mig-configs"]
    assert len(by_name) == 3  # 7g.80gb twice, two 3g twice, the fifth 3g
    assert {"7g.80gb": 1} in [each[0]["mig-devices"] for each in by_name.values()]
    assert all(each[0]["devices"] == [0] for each in by_name.values())


def test_gpus_of_a_node_that_are_cut_alike_stand_together(file):
    words = ("--need", "small=30000", "--on", "large/gpu=7g.80gb")
    (devices,) = written(file, *words)[1]["mig-configs"].values()
    assert devices == [
        {"devices": [0, 1], "mig-enabled": True, "mig-devices": {"3g.40gb": 2}},
        {"devices": [2], "mig-enabled": True, "mig-devices": {"3g.40gb": 1}},
        {"devices": [3, 4], "mig-enabled": True, "mig-devices": {"7g.80gb": 1}},
    ]


def test_the_groups_make_a_valid_settings_file_that_asks_for_the_slices(file):
    groups = written(file, *NEEDS)[2]
    settings = yaml.safe_load(FILE)
    for name, model in groups["models"].items():
        settings["models"][name]["replicas"] |= model["replicas"]
    models = parse(settings).models
    (small,) = models["small"].views().values()
    assert small.replicas.most == 5
    assert (small.replicas.num_gpus, small.replicas.resources) == (1, {"mig_1g_10gb": 1})
    gpu, cpu = models["large"].views().values()
    assert gpu.replicas.resources == {"licence": 1, "mig_3g_40gb": 1}
    assert cpu.replicas.resources == {"licence": 1}
    assert cpu.replicas.most == 3
    assert "plain" not in groups["models"]


def test_the_shared_pool_is_planned_too(file):
    file.write_text(FILE + "scaling: {pool: {max: 2, num_gpus: 1, resources: {licence: 1}}}\n")
    values, _, groups = written(file, *NEEDS, "--need", "scaling.pool=15000")
    bounds = {g["migProfile"]: (g["minReplicas"], g["maxReplicas"]) for g in values["workerGroups"]}
    assert bounds["1g.20gb"] == (0, 2)
    assert groups["scaling"] == {
        "pool": {"num_gpus": 1, "resources": {"licence": 1, "mig_1g_20gb": 1}}
    }


def test_a_file_with_its_groups_put_in_plans_the_same_again(file):
    first = written(file, *NEEDS)
    settings = yaml.safe_load(FILE)
    for name, model in first[2]["models"].items():
        settings["models"][name]["replicas"] |= model["replicas"]
    file.write_text(yaml.safe_dump(settings))
    assert written(file, *NEEDS)[:2] == first[:2]


def test_groups_in_force_keep_their_places_and_new_ones_come_last(file, tmp_path):
    values = tmp_path / "values.yaml"
    in_force = [
        {"name": "large", "migProfile": "3g.40gb", "maxReplicas": 9, "cpu": 8, "memory": "80Gi"},
        {"name": "cpu", "maxReplicas": 4},
        {"name": "whole", "migProfile": "7g.80gb", "minReplicas": 1, "maxReplicas": 3},
        {"name": "other", "migProfile": "1g.18gb", "minReplicas": 4, "maxReplicas": 4},
    ]
    values.write_text(yaml.safe_dump({"workerGroups": in_force}))
    groups = written(file, *NEEDS, "--values", str(values))[0]["workerGroups"]
    assert groups[:4] == [
        in_force[0] | {"minReplicas": 2, "maxReplicas": 2},
        in_force[1],
        in_force[2] | {"minReplicas": 0},
        in_force[3],  # of another GPU
    ]
    assert [each["name"] for each in groups[4:]] == ["mig-1g-10gb"]


@pytest.mark.parametrize(
    ("gpu", "small", "large", "sizes"),
    [
        ("a30", "1g.6gb", "4g.24gb", (5_949, 24_002)),
        ("h100-94", "1g.12gb", "3g.47gb", (10_874, 47_226)),
        ("gh200-96", "1g.12gb", "3g.48gb", (11_264, 47_616)),
    ],
)
def test_each_gpu_gets_its_own_profiles_filled_to_the_last_mebibyte(file, gpu, small, large, sizes):
    needs = [
        f"--need={name}={mib}" for name, mib in zip(("small", "large/gpu"), sizes, strict=True)
    ]
    values, layout, groups = written(file, *needs, gpus=[gpu])
    assert [(each["name"], each["migProfile"]) for each in values["workerGroups"]] == [
        (f"mig-{name.replace('.', '-')}", name) for name in (small, large)
    ]
    assert set(layout["mig-configs"]) == {f"headrace-{gpu}-0"}
    (group,) = groups["models"]["small"]["replicas"]["groups"]
    assert group["resources"] == {f"mig_{small.replace('.', '_')}": 1}


def test_b200_slices_are_planned_with_what_a_node_says(file):
    words = ("--need", "small=18000", "--need", "large/gpu=80000", "--usable", "3g.90gb=88000")
    values, layout, _ = written(file, *words, gpus=["b200-180"])
    assert [each["migProfile"] for each in values["workerGroups"]] == ["1g.23gb", "3g.90gb"]
    assert list(layout["mig-configs"]) == ["headrace-b200-180-0"]


def test_each_replica_of_a_fleet_gets_the_smallest_slice_that_holds_it(file):
    words = ("--need", "small=5900", "--need", "large/gpu=30000", "--per-node", "4")
    values, layout, _ = written(file, *words, gpus=["h100-80", "a30"])
    assert [(each["name"], each["maxReplicas"]) for each in values["workerGroups"]] == [
        ("mig-3g-40gb", 2), ("mig-1g-6gb", 5),
    ]  # fmt: skip
    # No other GPU of the fleet has a profile of these names: they say which nodes.
    assert not {"resources", "nodeSelector", "podTemplate"} & values["workerGroups"][1].keys()
    assert layout["mig-configs"] == {
        "headrace-h100-80-0": [
            {"devices": [0], "mig-enabled": True, "mig-devices": {"3g.40gb": 2}}
        ],
        "headrace-a30-0": [
            {"devices": [0], "mig-enabled": True, "mig-devices": {"1g.6gb": 3}},
            {"devices": [1], "mig-enabled": True, "mig-devices": {"1g.6gb": 2}},
        ],
    }


SAME_NAMES = ("--need", "small=9000", "--need", "large/gpu=9000", "--on", "large/gpu=h100-80")


def test_profiles_of_one_name_are_told_apart_by_the_nodes_label_and_a_resource(file):
    values, _, groups = written(file, *SAME_NAMES, gpus=["a100-80", "h100-80"])
    a100, h100 = values["workerGroups"]
    assert (a100["name"], h100["name"]) == ("mig-1g-10gb-a100-80", "mig-1g-10gb-h100-80")
    assert a100["migProfile"] == h100["migProfile"] == "1g.10gb"
    terms = h100["podTemplate"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    products = ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe"]
    assert term["matchExpressions"] == [
        {"key": "nvidia.com/gpu.product", "operator": "In", "values": products}
    ]
    (small,) = groups["models"]["small"]["replicas"]["groups"]
    large = groups["models"]["large"]["replicas"]["groups"][0]
    assert small["resources"] == {"mig_1g_10gb": 1, **a100["resources"]}
    assert large["resources"] == {"licence": 1, "mig_1g_10gb": 1, **h100["resources"]}
    assert (a100["resources"], h100["resources"]) == ({"gpu_a100_80": 1}, {"gpu_h100_80": 1})


def test_a_fleet_is_planned_the_same_again_beside_its_values(file, tmp_path):
    fleet = ["a100-80", "h100-80"]
    first = written(file, *SAME_NAMES, gpus=fleet)
    settings = yaml.safe_load(FILE)
    for name, model in first[2]["models"].items():
        settings["models"][name]["replicas"] |= model["replicas"]
    file.write_text(yaml.safe_dump(settings))
    (tmp_path / "v.yaml").write_text(yaml.safe_dump(first[0]))
    words = (*SAME_NAMES[:4], "--values", str(tmp_path / "v.yaml"))  # without --on
    assert written(file, *words, gpus=fleet) == first


def test_of_each_gpu_of_a_fleet_there_may_be_a_number(file):
    words = ("--need", "small=5000", "--need", "large/gpu=30000", "--gpus", "a30=1")
    result = run(file, *words, gpus=["a30", "h100-80"])
    assert result.exit_code == 1
    assert "small (1 of 5) finds no further 1g.6gb on 1 GPU" in result.output
    assert "2 slices on 1 x h100-80" in result.output


def test_gke_cuts_a_node_pool_alike_so_each_profile_has_gpus_of_its_own(file):
    needs = ("--need", "small=9000", "--need", "large/gpu=15000")
    values, groups = written(file, *needs, "--devices", "gke")
    assert "migLayouts" not in values
    label = {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    assert [
        (each["migProfile"], each["devices"], each["nodeSelector"])
        for each in values["workerGroups"]
    ] == [("1g.10gb", "gke", label), ("1g.20gb", "gke", label)]
    assert groups["models"]["small"]["replicas"]["groups"][0]["resources"] == {"mig_1g_10gb": 1}
    told = run(file, *needs, "--devices", "gke", "--per-node", "1").output
    # The device plugin's way holds both on one GPU.
    assert "5 slices on 1 x h100-80" in told
    assert "2 slices on 1 x h100-80" in told
    assert "room for" not in told
    accelerator = "--accelerator type=nvidia-h100-80gb,count=1,gpu-partition-size="
    assert [accelerator + name in told for name in ("1g.10gb", "1g.20gb")] == [True, True]
    assert "kubectl label" not in told


@pytest.mark.parametrize(
    ("gpu", "accelerator"),
    [
        ("a100-40", "nvidia-tesla-a100"), ("a100-80", "nvidia-a100-80gb"),
        ("h200-141", "nvidia-h200-141gb"), ("b200-180", "nvidia-b200"),
    ],
)  # fmt: skip
def test_gke_names_its_accelerators(file, gpu, accelerator):
    words = ("--need=small=4000", "--need=large/gpu=4000", "--devices=gke")
    values, _ = written(file, *words, gpus=[gpu])
    (group,) = values["workerGroups"]
    assert group["nodeSelector"] == {"cloud.google.com/gke-accelerator": accelerator}


def test_claims_are_written_beside_layouts(file):
    values, layout, _ = written(file, *NEEDS, "--devices", "dra")
    assert {each["devices"] for each in values["workerGroups"]} == {"dra"}
    assert values["migLayouts"]["configs"] == layout["mig-configs"]


def test_a_replica_without_a_place_is_exit_code_1_and_says_why(file):
    result = run(file, "--need", "small=9000", "--need", "large/gpu=90000")
    assert result.exit_code == 1
    assert "large/gpu (2 of 2) needs 90,000 MiB, and 7g.80gb, the largest slice" in result.output
    result = run(file, *NEEDS, "--gpus", "1")
    assert result.exit_code == 1
    assert "large/gpu (1 of 2) finds no further 3g.40gb on 1 GPU" in result.output


def test_what_is_in_use_while_a_model_changes_is_planned_when_asked_for(file):
    file.write_text(FILE.replace("num_gpus: 1, surge_percent: 0", "num_gpus: 1"))
    result = run(file, *NEEDS)
    assert "a change of small starts replicas beside the old ones" in result.output
    told = run(file, *NEEDS, "--surge").output
    assert told.count("surge on 1g.10gb #") == 5
    assert "--surge" not in told


def test_what_a_node_says_of_its_slices_is_believed(file):
    words = ("--need", "large/gpu=30000", "--usable", "1g.10gb=8900")
    (small, _) = written(file, "--need", "small=9000", *words)[0]["workerGroups"]
    assert small["migProfile"] == "1g.20gb"


def test_no_replica_wants_a_slice(file):
    file.write_text("models: {a: {runtime: synthetic}}\n")
    result = run(file)
    assert result.exit_code == 0
    assert "0 slices on 0 x h100-80" in result.output
    assert written(file)[0] == {"workerGroups": [], "migLayouts": {"configs": {}}}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("--need", "smal=1"),
            "'smal' is not in the settings; must be one of small, large, plain, large/gpu",
        ),
        (("--on", "large/gpus=1g.10gb"), "'large/gpus' is not in the settings"),
        (("--need", "small"), "'small' must be MODEL=MIB"),
        (("--need", "small=0"), "'0' must be a whole number of MiB, at least 1"),
        (("--usable", "1g.18gb=100"), "--usable: h100-80 has no profile 1g.18gb"),
        (("--gpu", "v100"), "'v100' is not one of"),
        (("--usable", "a30:1g.6gb=1"), "--usable: a30 is not among --gpu (h100-80)"),
        (("--gpus", "a30=1"), "--gpus: a30 is not among --gpu (h100-80)"),
        (("--gpus", "few"), "'few' must be N"),
        (("--gpu", "a30", "--gpus", "4"), "'4' must be GPU=N"),
        (("--on", "small=a30:1g.6gb"), "--on small: a30 is not among --gpu (h100-80)"),
        (("--gpu", "a30", "--devices", "gke"), "--devices gke: GKE does not partition a30"),
        (("--devices", "gke", "--gpus", "1"), "--devices gke: --gpus must be left out"),
        (("--values", "nowhere.yaml"), "--values: nowhere.yaml cannot be read as YAML"),
        (("--to", "/dev/null/x"), "--to: /dev/null/x cannot be written: Not a directory"),
    ],
)
def test_wrong_arguments_are_exit_code_2_with_what_would_be_right(file, words, sentence):
    result = run(file, *words)
    assert result.exit_code == 2
    assert sentence in result.output


@pytest.mark.parametrize("text", ["workerGroups: {a: 1}", "[1]", "", "workerGroups: [1]"])
def test_values_that_are_none_are_refused(file, tmp_path, text):
    values = tmp_path / "values.yaml"
    values.write_text(text)
    result = run(file, *NEEDS, "--values", str(values))
    assert result.exit_code == 2
    assert "has no list of mappings under workerGroups" in result.output
