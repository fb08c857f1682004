"""docs/platforms: what the pages say to type is right as far as it can be known without their
platforms. The values are rendered as each page gives them, and checked as all value sets are;
objects that commands name are there; what `helm install` and `headrace` print is what is shown.

A block of YAML is the file that the paragraph before it names first. In a block `console` a line
with `$ ` is typed, the others are printed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from huggingface_hub.cli.hf import app as hub

from deployments import cli
from deployments.settings.replicas import ReplicaSettings
from deployments.tools.chart import values_schema
from tests.kube.chart import (
    CHART,
    LOADER,
    ROOT,
    Object,
    Values,
    cluster_of,
    laid_over,
    loaded,
    value_sets,
    values_of,
)
from tests.kube.crds import Crds
from tests.kube.verdict import complaints

PLACE = ROOT / "docs" / "platforms"
PAGES = sorted(PLACE.glob("*.md"))
KUBERNETES = (ROOT / "docs" / "kubernetes.md").read_text()
FENCED = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@dataclass(frozen=True)
class Typed:
    command: str
    printed: tuple[str, ...]

    def starts(self, words: str) -> bool:
        return self.command.startswith(words)


def typed(page: Path) -> list[Typed]:
    found: list[Typed] = []
    for language, block in FENCED.findall(page.read_text()):
        if language == "console":
            for text in re.split(r"^\$ ", block.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
                command, *printed = text.rstrip("\n").split("\n")
                found.append(Typed(" ".join(command.split()), tuple(printed)))
    return found


def files(page: Path) -> dict[str, Values]:
    """The files that it has the reader write."""
    found = {}
    text = page.read_text()
    for match in FENCED.finditer(text):
        if match[1] == "yaml":
            paragraph = text[: match.start()].rstrip().rpartition("\n\n")[2]
            named = re.search(r"`([\w.-]+\.yaml)`", paragraph)
            if named:
                found[named[1]] = values_of(match[2])
    return found


def installed(page: Path, folder: Path) -> Iterator[tuple[Typed, Values]]:
    """Each command that installs, upgrades or renders the chart, and the values that it gives."""
    known = files(page)
    for each in typed(page):
        words = shlex.split(each.command, comments=True)
        if words[:1] == ["helm"] and words[2:3] == ["demo"] and words[1] != "test":
            values: Values = {}
            for name in (after for word, after in pairwise(words) if word == "-f"):
                values = laid_over(values, known.get(name) or _read(name, folder))
            yield each, values


def _read(name: str, folder: Path) -> Values:
    place = next(
        each for each in (ROOT / name, CHART / "ci" / name, folder / name) if each.exists()
    )
    return values_of(place.read_text())


@cache
def rendered(text: str) -> tuple[list[Object], str]:
    """Objects and notes."""
    texts = loaded().render(yaml.safe_load(text), name="demo", namespace="headrace")
    notes = next(text for path, text in texts.items() if path.endswith("NOTES.txt"))
    others = [text for path, text in texts.items() if not path.endswith("NOTES.txt")]
    return [each for text in others for each in yaml.load_all(text, LOADER) if each], notes


def planned(page: Path, folder: Path) -> list[tuple[Typed, str]]:
    """What `headrace plan` prints; its files are in the folder then."""
    found = []
    for name, values in files(page).items():
        (folder / name).write_text(yaml.safe_dump(values))
    for each in typed(page):
        if each.starts("headrace plan"):
            words = [str(folder / w) if w in ("settings.yaml", "plan") and n > 1 else w
                     for n, w in enumerate(shlex.split(each.command)[1:])]  # fmt: skip
            done = CliRunner().invoke(cli.main, words)
            assert done.exit_code == 0, done.output
            found.append((each, done.output))
    return found


def test_there_is_a_page_for_each_platform_and_kubernetes_md_leads_there() -> None:
    names = {"gke", "eks", "aks", "openshift", "k3s", "argo-cd", "air-gapped", "mig"}
    assert {page.stem for page in PAGES} == names
    assert set(re.findall(r"platforms/([\w-]+)\.md", KUBERNETES)) == names
    assert KUBERNETES.index("## Install in five commands") < KUBERNETES.index("## Platforms")


@each_page
def test_its_values_render_and_nothing_is_wrong(
    page: Path, tmp_path: Path, crds_if_there: Crds | None
) -> None:
    planned(page, tmp_path)
    found = list(installed(page, tmp_path))
    assert found
    for each, values in found:
        assert "-n headrace" in each.command
        objects, _ = rendered(yaml.safe_dump(values))
        assert complaints(objects, values, crds_if_there) == []


@each_page
def test_what_it_has_the_reader_edit_is_where_the_values_have_it(
    page: Path, tmp_path: Path
) -> None:
    """Every leaf of `mine.yaml` replaces one, or names what only the reader can know."""
    mine = files(page).get("mine.yaml", {})
    if page.stem in ("mig", "k3s"):
        assert mine
        return
    platform = _read(f"{page.stem}.yaml", tmp_path)
    new = {path for path in _leaves(mine) if not _there(platform, path)}
    assert {path[0] for path in new} <= {"image", "env", "ingress"}, new


def _leaves(values: Values, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, each in values.items():
        if isinstance(each, dict):
            yield from _leaves(each, (*path, name))
        else:
            yield (*path, name)


def _there(values: Values, path: tuple[str, ...]) -> bool:
    return not path or (path[0] in values and _there(values[path[0]], path[1:]))


@each_page
def test_it_installs_waits_and_predicts_in_that_order(page: Path) -> None:
    order = [
        "helm install kuberay-operator", "helm install demo",
        "kubectl -n headrace wait rayservice/", "curl -s http://127.0.0.1:8000/v",
    ]  # fmt: skip
    if page.stem == "argo-cd":
        order[1] = "kubectl apply -f application.yaml"
    commands = [each.command for each in typed(page)]
    places = [next(n for n, one in enumerate(commands) if one.startswith(each)) for each in order]
    assert places == sorted(places)
    assert len(page.read_text().splitlines()) < 150


@each_page
def test_what_helm_and_the_prediction_print_is_what_it_shows(page: Path, tmp_path: Path) -> None:
    planned(page, tmp_path)
    notes = ""
    for each, values in installed(page, tmp_path):
        notes += rendered(yaml.safe_dump(values))[1]
        shown = [line for line in each.printed if line.startswith("Headrace ")]
        assert set(shown) <= set(notes.splitlines())
    asked = [each.command for each in typed(page) if each.starts("curl -s http://127.0.0.1:8000/v")]
    plain = " ".join(notes.replace("\\\n", "").split())
    upgraded = "helm upgrade" in page.read_text()
    assert asked
    assert all(each in plain for each in (asked[:1] if upgraded else asked))
    of_notes = ("port-forward svc/", "upgrade gpu-operator", "label node NODE", "wait rayservice/")
    repeated = [c for c in (each.command for each in typed(page)) if any(n in c for n in of_notes)]
    assert len(repeated) >= 2
    assert [each for each in repeated if each.removesuffix(" &") not in plain] == []


@each_page
def test_objects_that_its_commands_name_are_there(page: Path, tmp_path: Path) -> None:
    planned(page, tmp_path)
    objects = [
        o for _, values in installed(page, tmp_path) for o in rendered(yaml.safe_dump(values))[0]
    ]
    names = {each["metadata"]["name"] for each in objects} | {"demo-headrace-serve-svc"}
    components = {
        each["metadata"].get("labels", {}).get("app.kubernetes.io/component") for each in objects
    }
    text = " ".join(each.command for each in typed(page))
    assert set(re.findall(r"\bdemo-headrace[\w-]*", text)) <= names
    assert set(re.findall(r"app\.kubernetes\.io/component=([\w-]+)", text)) <= components


@dataclass(frozen=True)
class Machine:
    """What a node of the type has for pods, as its cloud documents what it reserves (2026-11); half
    a CPU and 1 GiB of it are left to the platform's own pods."""

    cpus: float
    gib: float
    devices: int = 0


MACHINES = {
    "e2-standard-8": Machine(7.4, 27),
    "a2-highgpu-1g": Machine(11.4, 77, devices=7),  # of 1g.5gb
    "Standard_D8s_v5": Machine(7.3, 25),
    "Standard_NC4as_T4_v3": Machine(3.3, 21, devices=1),
    "g6.2xlarge": Machine(7.4, 27, devices=1),
    "g6.4xlarge": Machine(15.3, 56, devices=1),
}


def machines(page: Path) -> list[Machine]:
    """The nodes that it has the reader start, or one of each kind that may start."""
    found: list[Machine] = []
    for each in typed(page):
        named = re.search(r"--(?:machine-type|node-vm-size) (\S+)", each.command)
        if named:
            number = re.search(r"--(?:num-nodes|node-count) (\d+)", each.command)
            found += [MACHINES[named[1]]] * (int(number[1]) if number else 1)
    for each in re.findall(r"instance-type, operator: In, values: \[(.*?)\]", page.read_text()):
        found += [MACHINES[name] for name in each.split(", ")]
    text = " ".join(page.read_text().split())
    if own := re.search(r"You need (\d+) CPUs, (\d+) GiB of memory", text):
        found.append(Machine(int(own[1]) - 0.5, int(own[2]) - 1))
    for number, cpus, gib, gpus in re.findall(
        r"(one|three) (?:node|worker)s? of (\d+) CPUs and (\d+) GiB of memory( with two)?", text
    ):
        own_node = Machine(int(cpus) - 1, int(gib) - 3, devices=14 if gpus else 0)  # of 1g
        found += [own_node] * {"one": 1, "three": 3}[number]
    return found


def without_room(objects: list[Object], nodes: list[Machine]) -> list[str]:
    """Groups of Ray pods, in their least number, that find no node: large ones first, those with a
    device and those without on nodes of their own."""
    cluster = cluster_of(objects)
    wanted = [("head", 1, cluster["headGroupSpec"])]
    wanted += [(g["groupName"], g["minReplicas"], g) for g in cluster["workerGroupSpecs"]]
    pods = []
    for name, number, group in wanted:
        asked = [each["resources"]["requests"] for each in group["template"]["spec"]["containers"]]
        if name == "head" and cluster.get("enableInTreeAutoscaling"):
            asked.append(cluster["autoscalerOptions"]["resources"]["requests"])
        cpus, gib = sum(_cpus(a["cpu"]) for a in asked), sum(_gib(a["memory"]) for a in asked)
        device = any(each.startswith("nvidia.com/") for a in asked for each in a)
        pods += [(device, cpus, gib, name)] * number
    left = [[node.devices, node.cpus, node.gib] for node in nodes]
    missing = []
    for device, cpus, gib, name in sorted(pods, reverse=True):
        fits = (
            n
            for n, node in zip(left, nodes, strict=True)
            if bool(node.devices) == device and n[0] >= device and n[1] >= cpus and n[2] >= gib
        )
        place = next(fits, None)
        if place is None:
            missing.append(name)
        else:
            place[:] = place[0] - device, place[1] - cpus, place[2] - gib
    return missing


def _cpus(text: str) -> float:
    return int(text.removesuffix("m")) / 1000 if text.endswith("m") else float(text)


def _gib(text: str) -> float:
    return int(text[:-2]) / {"Mi": 1024, "Gi": 1}[text[-2:]]


@pytest.mark.parametrize("name", sorted({page.stem for page in PAGES} - {"eks"}))
def test_its_pods_fit_its_machines(name: str, tmp_path: Path) -> None:
    page = PLACE / f"{name}.md"
    planned(page, tmp_path)
    _, values = next(installed(page, tmp_path))
    assert without_room(rendered(yaml.safe_dump(values))[0], machines(page)) == []
    for group in values["workerGroups"]:
        group["cpu"] += 4
    assert without_room(rendered(yaml.safe_dump(values))[0], machines(page))


@pytest.mark.parametrize("name", ["air-gapped", "aks", "gke", "k3s", "mig"])
def test_a_changed_model_finds_room_where_no_node_can_be_added(name: str, tmp_path: Path) -> None:
    """Its replicas of both versions, beside those of all others, in the pods that there are."""
    page = PLACE / f"{name}.md"
    planned(page, tmp_path)
    *_, (_, values) = installed(page, tmp_path)
    pods = [(g["minReplicas"], g) for g in values["workerGroups"]]
    devices = sum(n * g.get("gpus", int("migProfile" in g)) for n, g in pods)
    what, room = (
        ("num_gpus", devices) if devices else ("num_cpus", sum(n * g["cpu"] for n, g in pods))
    )
    taken, more = 0.0, [0.0]
    for model in values["models"].values():
        replicas = ReplicaSettings.model_validate(model.get("replicas", {}))
        of_model = (replicas.count or 1) * getattr(replicas, what)
        taken += of_model
        more.append(of_model * replicas.surge_percent / 100)
    assert 0 < taken + max(more) <= room


def test_a_pod_fits_each_machine_that_karpenter_may_choose(tmp_path: Path) -> None:
    page = PLACE / "eks.md"
    _, values = next(installed(page, tmp_path))
    objects = rendered(yaml.safe_dump(values))[0]
    assert len(machines(page)) == 2
    for each in machines(page):
        found = without_room(objects, [each, each, Machine(100, 100)])
        assert found == []


@pytest.mark.parametrize("name", ["aks", "eks", "k3s"])
def test_nodes_have_the_label_by_which_the_device_plugins_chart_finds_them(name: str) -> None:
    page = PLACE / f"{name}.md"
    assert re.search(r"nvidia\.com/gpu\.present(=true|: \"true\")", page.read_text())


@each_page
def test_it_says_what_must_be_there_before_its_commands(page: Path) -> None:
    above = page.read_text().partition("\n## ")[0].lower()
    tools = {
        "argocd",
        "aws",
        "az",
        "docker",
        "eksctl",
        "gcloud",
        "headrace",
        "helm",
        "hf",
        "kubectl",
        "oc",
    }
    if page.stem == "k3s":
        tools.remove("kubectl")  # k3s brings it
    used = {w for each in typed(page) for w in re.findall(r"(?:^|\| )(\w+) ", each.command)}
    assert {each for each in used & tools if not re.search(rf"\b{each}\b", above)} == set()


@each_page
def test_an_image_is_for_the_nodes_and_nobody_is_told_that_cuda_was_tried(page: Path) -> None:
    brought = [
        each.command for each in typed(page) if re.search(r"docker (build|pull) ", each.command)
    ]
    assert [each for each in brought if "--platform linux/amd64" not in each] == []
    text = page.read_text()
    assert ("-cuda" in text) == ("Nobody has built the `cuda` image yet" in text)


def test_the_digest_of_a_folder_needs_no_gnu_tools() -> None:
    (command,) = re.findall(r"^find .*$", (ROOT / "docs/sources.md").read_text(), re.MULTILINE)
    assert not re.search(r"-printf|xargs -d", command)
    for name in ("gke", "eks"):
        commands = [each.command for each in typed(PLACE / f"{name}.md")]
        assert f"cd minilm; {command}; cd .." in commands


def test_no_kubeconfig_is_overwritten() -> None:
    (command,) = [
        each.command for each in typed(PLACE / "k3s.md") if "config view --raw" in each.command
    ]
    assert ".kube/config" not in command


def test_a_projects_administrator_may_do_what_the_chart_does_with_rays_objects(
    tmp_path: Path,
) -> None:
    """RBAC lets nobody make a Role that may do more than they may themselves."""
    page = PLACE / "openshift.md"
    (command,) = [each for each in typed(page) if each.starts("oc create clusterrole ")]
    said = dict(re.findall(r"--(verb|resource)=(\S+)", command.command))
    verbs, resources = set(said["verb"].split(",")), set(said["resource"].split(","))
    _, values = next(installed(page, tmp_path))
    for each in rendered(yaml.safe_dump(values))[0]:
        for rule in each["rules"] if each["kind"] == "Role" else ():
            assert set(rule["verbs"]) <= verbs
            assert {f"{r}.{g}" for r in rule["resources"] for g in rule["apiGroups"]} <= resources
    assert {"create", "update", "patch", "delete"} <= verbs
    assert any("aggregate-to-admin=true" in each.command for each in typed(page))


@pytest.mark.parametrize("name", ["aks", "gke"])
def test_the_gateway_that_it_makes_is_the_routes(name: str, tmp_path: Path) -> None:
    page = PLACE / f"{name}.md"
    gateway = files(page)["gateway.yaml"]
    _, values = next(installed(page, tmp_path))
    routes = [o for o in rendered(yaml.safe_dump(values))[0] if o["kind"] == "HTTPRoute"]
    ((parent,),) = [each["spec"]["parentRefs"] for each in routes]
    assert parent["name"] == gateway["metadata"]["name"]
    assert parent.get("namespace") == gateway["metadata"].get("namespace")
    assert parent["sectionName"] in [each["name"] for each in gateway["spec"]["listeners"]]
    commands = " ".join(each.command for each in typed(page))
    made = {"aks": "create secret tls headrace-tls ", "gke": "maps create models "}[name]
    assert made in commands
    assert f"-n {parent.get('namespace', 'headrace')} get gateway {parent['name']}" in commands


def test_karpenter_has_a_pool_for_each_pod_and_a_disk_for_the_image(tmp_path: Path) -> None:
    page = PLACE / "eks.md"
    pool, node = files(page)["nodepool.yaml"], files(page)["nodeclass.yaml"]
    names = pool["spec"]["template"]["spec"]["nodeClassRef"]["name"], node["metadata"]["name"]
    assert names == ("default", "default"), "head and gateways pull the same image"
    (disk,) = node["spec"]["blockDeviceMappings"]
    assert _gib(disk["ebs"]["volumeSize"]) >= 100
    _, values = next(installed(page, tmp_path))
    cluster = cluster_of(rendered(yaml.safe_dump(values))[0])
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    pools = {each["template"]["spec"]["nodeSelector"]["karpenter.sh/nodepool"] for each in groups}
    assert pools == {"default", pool["metadata"]["name"]}, "Karpenter's start makes `default`"


def test_the_first_files_of_kubernetes_md_are_enough() -> None:
    known = files(ROOT / "docs" / "kubernetes.md")
    values = laid_over(known["settings.yaml"], known["pods.yaml"])
    objects, _ = rendered(yaml.safe_dump(values))
    assert complaints(objects, values, None) == []


@each_page
def test_a_download_takes_the_tokenizer_and_the_weights(page: Path) -> None:
    """As the installed CLI reads the line."""
    lazy: Any = hub.get_command(click.Context(hub), "download")
    command: click.Command = lazy.materialize()
    for each in typed(page):
        if each.starts("hf download"):
            said = command.make_context("download", shlex.split(each.command)[2:]).params
            assert (
                said["repo_id"]
                == {
                    "minilm": "sentence-transformers/all-MiniLM-L6-v2",
                    "ranker": "cross-encoder/ms-marco-MiniLM-L6-v2",
                }[Path(said["local_dir"]).name]
            )
            assert not said["filenames"], "--include is ignored beside names of files"
            assert list(said["include"]) == ["*.json", "model.safetensors"]
            assert said["local_dir"] in page.read_text().split("rm -r ")[1]


def test_an_image_of_models_is_built_where_they_are() -> None:
    """Of the repository's folder nothing is sent but what its .dockerignore names."""
    page = PLACE / "air-gapped.md"
    (build,) = [each.command for each in typed(page) if "FROM scratch" in each.command]
    (get,) = [each.command for each in typed(page) if each.starts("hf download")]
    context = shlex.split(build)[-1]
    assert shlex.split(get)[shlex.split(get).index("--local-dir") + 1] == f"{context}/minilm"
    assert "COPY . /" in build
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in sent
    assert f"!{context}" not in sent


def test_each_namespace_that_pulls_has_its_secret_first() -> None:
    commands = [each.command for each in typed(PLACE / "air-gapped.md")]
    for namespace, release in [("kuberay-operator", "kuberay-operator"), ("headrace", "demo")]:
        secret, installs = (
            next(n for n, each in enumerate(commands) if each.startswith(start))
            for start in (f"kubectl -n {namespace} create secret", f"helm install {release} ")
        )
        assert secret < installs
    (operator,) = [each for each in commands if each.startswith("helm install kuberay-operator")]
    assert "--set imagePullSecrets[0].name=registry" in " ".join(shlex.split(operator))


def test_the_names_of_a_cluster_are_of_one_domain() -> None:
    text = (PLACE / "openshift.md").read_text()
    hosts = set(re.findall(r"[\w-]+(?:\.[\w-]+)*\.example\.org", text))
    assert {host.partition(".")[2] for host in hosts - {"api.cluster.example.org"}} == {
        "apps.cluster.example.org"
    }
    commands = [each.command for each in typed(PLACE / "openshift.md")]
    route, login = (
        next(n for n, each in enumerate(commands) if word in each)
        for word in ('"defaultRoute":true', "oc registry login")
    )
    assert route < login


def test_the_plan_that_is_shown_is_the_one_that_comes_out(tmp_path: Path) -> None:
    ((shown, output),) = planned(PLACE / "mig.md", tmp_path)
    lines = [line.rstrip() for line in output.splitlines()]
    assert [line for line in shown.printed if line != "…" and line not in lines] == []
    layouts = yaml.safe_load((tmp_path / "plan" / "mig-parted.yaml").read_text())["mig-configs"]
    del layouts["all-disabled"]
    cut = [each["mig-devices"].get("1g.10gb", 0) * len(each["devices"])
           for layout in layouts.values() for each in layout]  # fmt: skip
    (allocatable,) = [each for each in typed(PLACE / "mig.md") if "SMALL:" in each.command]
    assert allocatable.printed[-1] == str(sum(cut))


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "docs/kubernetes.md", ROOT / "docs/mig.md"], ids=str
)
def test_its_links_lead_somewhere(page: Path) -> None:
    for place, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([\w-]+))?\)", page.read_text()):
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), place
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert anchor in {_anchor(each) for each in headings}, f"{place}#{anchor}"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@each_page
def test_values_that_it_names_exist(page: Path) -> None:
    schema = values_schema((CHART / "values.yaml").read_text())
    tops = set(schema["properties"])
    for name in re.findall(r"`([a-z]\w+(?:\.\w+)+)(?:: [^`]*)?`", page.read_text()):
        first, *rest = name.split(".")
        if first in tops and "properties" in schema["properties"][first]:
            below = schema["properties"][first]
            for part in rest:
                assert part in below["properties"], name
                below = below["properties"][part]
                if "properties" not in below:
                    break


def test_situations_that_pages_name_are_value_sets() -> None:
    i = KUBERNETES.index("## Situations")
    table = KUBERNETES[i : KUBERNETES.index("\n## ", i + 5)]
    last = [
        row.rstrip(" |").rpartition("|")[2] for row in table.splitlines() if row.startswith("| ")
    ]
    named = set(re.findall(r"`([a-z0-9-]+)`", " ".join(last[1:])))
    situations = values_of((ROOT / "tests/kube/value_sets/situations.yaml").read_text())
    assert named - set(value_sets()) == set()
    assert set(situations) - named == set()
    for page in PAGES:
        for each in re.findall(
            r"situations\.yaml\): `([\w-]+)`", page.read_text().replace("\n ", "")
        ):
            assert each in situations
