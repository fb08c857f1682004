"""The chart's own value sets: each renders, is what Kubernetes, KubeRay and Ray take, and means the
applications that `headrace build` makes of the same settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.control.scaling.scaling_terms import scaling_document
from deployments.control.serve_config import serve_config
from deployments.settings.gateway import GatewaySettings
from deployments.settings.model import ModelSettings
from deployments.settings.plain import parse
from deployments.settings_files.load import load
from tests.kube.chart import (
    CHART,
    SECTIONS,
    Object,
    Values,
    misspelt,
    objects,
    serve_config_of,
    settings_of,
    value_sets,
    values_of_set,
)
from tests.kube.crds import Crds
from tests.kube.pods import pods
from tests.kube.verdict import complaints

each_set = pytest.mark.parametrize("name", value_sets())
PLATFORMS = {
    "aks", "air-gapped", "argo-cd", "eks", "gke", "k3s", "mig-h200",
    "openshift",
}  # fmt: skip
_AT_LEAST = 40


def test_there_are_enough_of_them_and_the_chart_has_one_of_each_platform() -> None:
    assert len(value_sets()) >= _AT_LEAST
    assert {path.stem for path in (CHART / "ci").iterdir()} == PLATFORMS
    assert all(each.about for each in value_sets().values())
    assert [name for name, each in value_sets().items() if not each.renders] == []


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, set()),
        ({"render": []}, {"render"}),
        ({"renders": []}, {"has", "kind, pod or application"}),
        ({"renders": [{"kind": "Pod", "has": {}, "lack": ["spec"]}]}, {"lack"}),
        ({"renders": [{"pods": "head", "has": {}}]}, {"pods", "kind, pod or application"}),
        ({"renders": [{"pod": "head", "lacks": ["spec"]}]}, {"has"}),
    ],
)
def test_a_misspelt_check_is_found(change: Values, wrong: set[str]) -> None:
    right: Values = {"about": "", "values": {}, "renders": [{"pod": "head", "has": {}}], "none": []}
    assert misspelt(right | change) == wrong


@each_set
def test_it_renders_what_it_is_for(name: str) -> None:
    found, wanted = objects(values_of_set(name)), value_sets()[name]
    for each in wanted.renders:
        assert any(has(one, each) for one in candidates(found, each)), each
    assert {each["kind"] for each in found} & set(wanted.none) == set()


def test_what_is_not_rendered_is_missed(plain_objects: list[Object]) -> None:
    head = {"pod": "head", "has": {"spec": {"containers": [{"name": "ray"}]}}}
    wrong = [
        head | {"has": {"spec": {"containers": [{"name": "ray", "image": "none"}]}}},
        head | {"lacks": ["metadata.labels.app.kubernetes.io/component"]},
        {"pod": "other", "has": {}},
        {"application": "model-other", "has": {}},
        {"application": "model-device", "has": {"route_prefix": "/"}},
        {"kind": "Ingress", "has": {}},
    ]
    for wanted, right in [(head, True), *((each, False) for each in wrong)]:
        assert any(has(each, wanted) for each in candidates(plain_objects, wanted)) is right


def candidates(found: list[Object], wanted: Object) -> list[Object]:
    """Objects of the kind, pods of the component, or the application of Serve."""
    if "application" in wanted:
        each = by_name(serve_config_of(found)).get(wanted["application"])
        return [] if each is None else [each]
    if "kind" in wanted:
        return [each for each in found if each["kind"] == wanted["kind"]]
    templates = [template for each in found for _, template in pods(each)]
    component = "app.kubernetes.io/component"
    return [each for each in templates if each["metadata"]["labels"][component] == wanted["pod"]]


def has(found: Object, wanted: Object) -> bool:
    lacking = [each for each in wanted.get("lacks", ()) if _is_there(found, each)]
    return _covers(found, wanted["has"]) and not lacking


def _covers(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            name in found and _covers(found[name], each) for name, each in wanted.items()
        )
    if isinstance(wanted, list):
        return all(any(_covers(one, each) for one in found) for each in wanted)
    return bool(found == wanted)


def _is_there(found: Object, path: str) -> bool:
    """Names may have dots themselves."""
    if path in found:
        return True
    for name, each in found.items():
        if path.startswith(f"{name}.") and isinstance(each, dict):
            return _is_there(each, path[len(name) + 1 :])
    return False


ANSWERS_S = 660  # the longest that the chart gives time for (`drainSeconds`)
NGINX, ALB = "nginx.ingress.kubernetes.io", "alb.ingress.kubernetes.io"
EDGES: dict[str, dict[str, str]] = {
    "nginx": {f"{NGINX}/proxy-read-timeout": f"{ANSWERS_S}", f"{NGINX}/proxy-body-size": "64m"},
    "alb": {f"{ALB}/load-balancer-attributes": f"idle_timeout.timeout_seconds={ANSWERS_S}"},
    "openshift-default": {"haproxy.router.openshift.io/timeout": f"{ANSWERS_S}s"},
    "traefik": {},  # neither bounds an answer's time nor a body's size
}


@pytest.mark.parametrize("name", value_sets())
def test_the_edge_lets_through_what_gateways_take(name: str) -> None:
    """A long answer, and a body as large as a gateway takes by itself."""
    found = objects(values_of_set(name))
    assert GatewaySettings().limits.max_body_bytes == 64 << 20
    for each in found:
        if each["kind"] == "Ingress":
            wanted = EDGES[each["spec"]["ingressClassName"]]
            assert wanted.items() <= each["metadata"].get("annotations", {}).items()
    kinds = {each["kind"]: each for each in found}
    if "HTTPRoute" in kinds:  # Google's controller refuses a route that has timeouts
        (rule,) = kinds["HTTPRoute"]["spec"]["rules"]
        google = "GCPBackendPolicy" in kinds
        assert rule.get("timeouts") == (None if google else {"request": "0s"})
    if "HealthCheckPolicy" in kinds:
        policy = kinds["GCPBackendPolicy"]["spec"]
        assert policy["default"]["timeoutSec"] == ANSWERS_S
        assert policy["targetRef"] == kinds["HealthCheckPolicy"]["spec"]["targetRef"]


@each_set
def test_nothing_is_wrong_with_its_objects(name: str, crds_if_there: Crds | None) -> None:
    values = values_of_set(name)
    assert complaints(objects(values), values, crds_if_there) == []


@each_set
def test_its_custom_resources_are_what_their_crds_take(name: str, real_crds: Crds) -> None:
    found = [each for each in objects(values_of_set(name)) if real_crds.knows(each)]
    assert "RayService" in {each["kind"] for each in found}
    assert [said for each in found for said in real_crds.complaints(each)] == []


@each_set
def test_its_applications_are_those_of_headrace_build(name: str, tmp_path: Path) -> None:
    values = values_of_set(name)
    assert same(serve_config_of(objects(values))) == same(built(values, tmp_path))


@each_set
def test_the_autoscaler_hears_what_the_settings_say(name: str) -> None:
    values = values_of_set(name)
    told = by_name(serve_config_of(objects(values)))["headrace-control"]["deployments"][0][
        "user_config"
    ]["scaling"]
    assert scaling_document(parse(told)) == scaling_document(parse(settings_of(values)))


@each_set
def test_a_model_passes_through_as_it_was_written(name: str) -> None:
    values = values_of_set(name)
    applications = by_name(serve_config_of(objects(values)))
    for model_name, model in values["models"].items():
        passed = applications[f"model-{model_name}"]["args"]["settings"]
        elsewhere = ("replicas", "scaling")
        assert {n: v for n, v in passed.items() if n != "replicas"} == {
            n: v for n, v in model.items() if n not in elsewhere
        }


@each_set
def test_the_check_before_an_installation_sees_the_same_settings(name: str, tmp_path: Path) -> None:
    values = values_of_set(name)
    files = [
        o["data"]["settings.yaml"] for o in objects(values) if "settings.yaml" in o.get("data", {})
    ]
    if not files:
        assert values["check"] == {"enabled": False}
        return
    (tmp_path / "settings.yaml").write_text(files[0])
    checked = load(tmp_path / "settings.yaml", here=False, absolute=False)
    assert same(serve_config(checked)) == same(built(values, tmp_path))


@each_set
def test_lint_finds_nothing(name: str) -> None:
    import helm_python

    values = values_of_set(name)
    report = helm_python.lint(CHART, values, strict=True, kube_version="v1.37.0")
    assert [m for m in report["messages"] if m["severity"] > 1] == []
    assert report["errors"] == []


@each_set
def test_whole_numbers_may_be_floating_ones(name: str) -> None:
    """Helm 3 reads all numbers so; a cluster must not be rolled by another Helm."""
    values = values_of_set(name)
    floating = json.loads(json.dumps(values), parse_int=float)
    assert json.dumps(objects(floating)) == json.dumps(objects(values))


def built(values: Values, folder: Path) -> Object:
    """`headrace build` of the values' own sections, as a file."""
    path = folder / "built.yaml"
    path.write_text(yaml.safe_dump(settings_of(values)))
    assert set(settings_of(values)) == set(SECTIONS)
    return serve_config(load(path, here=False, absolute=False))


def by_name(config: Object) -> dict[str, Any]:
    return {each["name"]: each for each in config["applications"]}


def same(config: Object) -> Object:
    """With models' settings as replicas understand them (`off` for false, one number for a list of
    them), and applications by name: Serve has no order of them."""
    return {**config, "applications": {n: _understood(a) for n, a in by_name(config).items()}}


def _understood(application: Object) -> Object:
    if application["name"] == "headrace-control":
        (deployment,) = application["deployments"]
        block = deployment["user_config"]
        told = block["scaling"]
        models = {name: _settings(model) for name, model in told["models"].items()}
        scaling = told | {"models": models}
        return {
            **application,
            "deployments": [{**deployment, "user_config": {**block, "scaling": scaling}}],
        }
    if not application["name"].startswith("model-"):
        return application
    args = {**application["args"], "settings": _settings(application["args"]["settings"])}
    if "groups" in args:
        args["groups"] = [g | {"settings": _settings(g["settings"])} for g in args["groups"]]
    return {**application, "args": args}


def _settings(written: Object) -> Object:
    return ModelSettings.model_validate(written).model_dump(mode="json", exclude_unset=True)
