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

import pytest
import yaml
from click.testing import CliRunner

from deployments import cli
from deployments.tools.chart import values_schema
from tests.kube.chart import CHART, ROOT, Object, Values, laid_over, loaded, value_sets, values_of
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
    return [each for text in others for each in yaml.safe_load_all(text) if each], notes


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
    assert len(page.read_text().splitlines()) <= 160


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


def test_the_plan_that_is_shown_is_the_one_that_comes_out(tmp_path: Path) -> None:
    ((shown, output),) = planned(PLACE / "mig.md", tmp_path)
    lines = [line.rstrip() for line in output.splitlines()]
    assert [line for line in shown.printed if line != "…" and line not in lines] == []
    layouts = yaml.safe_load((tmp_path / "plan" / "mig-parted.yaml").read_text())["mig-configs"]
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
