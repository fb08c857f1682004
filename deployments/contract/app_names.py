"""What Serve's applications and deployments are called, and the key of a replica directory."""

from __future__ import annotations

GATEWAY_APP = "gateway"
GATEWAY_DEPLOYMENT = "gateway"
TENANTS_APP = "headrace-tenants"
POOL_APP = "headrace-pool"
POOL_DEPLOYMENT = "pool"
POOL_DIRECTORY = f"{POOL_APP}/{POOL_DEPLOYMENT}"  # as `directory_key`
MODEL_DEPLOYMENT = "model"
ANCHOR_DEPLOYMENT = "anchor"


def model_app(name: str) -> str:
    return f"model-{name}"


def is_model_app(app: str) -> bool:
    return app.startswith(model_app(""))


def model_name(app: str) -> str:
    """The inverse of `model_app`."""
    return app.removeprefix(model_app(""))


def model_deployment(group: str = "") -> str:
    """Of a group's replicas; of all replicas of a model without groups."""
    return f"{MODEL_DEPLOYMENT}-{group}" if group else MODEL_DEPLOYMENT


def is_model_deployment(name: str) -> bool:
    """Whether these are replicas of a model, and no anchor."""
    return name == MODEL_DEPLOYMENT or name.startswith(f"{MODEL_DEPLOYMENT}-")


def directory_key(name: str, group: str = "") -> str:
    """As the pin router knows it: application/deployment."""
    return f"{model_app(name)}/{model_deployment(group)}"
