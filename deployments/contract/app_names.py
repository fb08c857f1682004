"""What Serve's applications and deployments are called, and the key of a model's replica book."""

from __future__ import annotations

GATEWAY_APP = "gateway"
MODEL_DEPLOYMENT = "model"


def model_app(name: str) -> str:
    return f"model-{name}"


def is_model_app(app: str) -> bool:
    return app.startswith(model_app(""))


def directory_key(name: str) -> str:
    """As the pin router knows it: application/deployment."""
    return f"{model_app(name)}/{MODEL_DEPLOYMENT}"
