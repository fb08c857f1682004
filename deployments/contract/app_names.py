"""The names of Serve's applications and deployments, and the keys of replica directories."""

from __future__ import annotations

GATEWAY_APP = "gateway"
GATEWAY_DEPLOYMENT = "gateway"
CONTROL_APP = "headrace-control"
CONTROL_DEPLOYMENT = "control"
POOL_APP = "headrace-pool"
POOL_DEPLOYMENT = "pool"
POOL_DIRECTORY = f"{POOL_APP}/{POOL_DEPLOYMENT}"  # of the form that `directory_key` returns
MODEL_DEPLOYMENT = "model"
ANCHOR_DEPLOYMENT = "anchor"


def model_app(name: str) -> str:
    """The name of the Serve application that runs this model."""
    return f"model-{name}"


def is_model_app(app: str) -> bool:
    return app.startswith(model_app(""))


def model_name(app: str) -> str:
    """The model that this application runs: the inverse of `model_app`."""
    return app.removeprefix(model_app(""))


def model_deployment(group: str = "") -> str:
    """The deployment of this group's replicas; without a group, of all replicas of the model."""
    return f"{MODEL_DEPLOYMENT}-{group}" if group else MODEL_DEPLOYMENT


def is_model_deployment(name: str) -> bool:
    """Whether the deployment runs replicas of a model, rather than the model's anchor."""
    return name == MODEL_DEPLOYMENT or name.startswith(f"{MODEL_DEPLOYMENT}-")


def directory_key(name: str, group: str = "") -> str:
    """The key of a replica directory, "application/deployment", as the pin router is given it."""
    return f"{model_app(name)}/{model_deployment(group)}"
