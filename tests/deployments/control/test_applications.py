"""What Serve makes of a model's arguments: which deployments, each started with what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray.serve._private.build_app import build_app

from deployments.control.application_list import by_name
from deployments.control.serve_config import serve_config
from deployments.replica.application import model
from deployments.settings_files.load import load

EXAMPLES = Path(__file__).parents[3] / "examples"


def built(example: str) -> dict[str, tuple[Any, ...]]:
    """Arguments of the deployments of `device`; a handle is the name of what it leads to."""
    config = serve_config(load(EXAMPLES / example, here=False, absolute=False))
    application = build_app(
        model(by_name(config)["model-device"]["args"]),
        name="model-device",
        make_deployment_handle=lambda deployment, app: deployment.name,  # type: ignore[arg-type, return-value]
    )
    assert application.ingress_deployment_name == "anchor"
    return {deployment.name: deployment.init_args for deployment in application.deployments}


def test_a_model_is_an_anchor_above_its_replicas() -> None:
    found = built("device.yaml")
    assert set(found) == {"anchor", "model"}
    assert found["anchor"] == (*found["model"], "model")


def test_each_group_is_a_deployment_below_the_same_anchor() -> None:
    found = built("groups.yaml")
    assert set(found) == {"anchor", "model-fast", "model-spare"}
    args, *handles = found["anchor"]
    assert handles == ["model-fast", "model-spare"]
    assert [group["name"] for group in args["groups"]] == ["fast", "spare"]
    (fast,) = found["model-fast"]
    assert (fast["group"], fast["settings"]["options"]["base_ms"]) == ("fast", 4)
