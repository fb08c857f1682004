"""Model descriptions for tests: a small text encoder unless told otherwise.

The folder is put on the import path, for the tests' own modules: tests are no packages here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployments.contract.description import ModelDescription
from deployments.replica.scheduling import scheduling
from deployments.settings.model import ModelSettings
from runtimes.types import TensorSpec

sys.path.insert(0, str(Path(__file__).parent))

SCHEDULING = scheduling(ModelSettings(runtime="synthetic"))


def described(**changes: Any) -> ModelDescription:
    fields: dict[str, Any] = {
        "name": "device",
        "version": "1",
        "generation": 1,
        "platform": "synthetic",
        "task": "tensors",
        "inputs": (TensorSpec("ids", "INT64", (-1, -1)),),
        "outputs": (TensorSpec("sum", "FP32", (-1,)),),
        "lengths_input": "ids",
        "lengths_axis": 1,
        "mask_input": None,
        "optional_inputs": (),
        "max_length": 8,
        "truncate": False,
        "bucket_edges": (4, 8),
        "pads": True,
        "precision": "fp32",
        "device": "cpu",
        "scheduling": SCHEDULING,
        "digest": "d",
    }
    return ModelDescription(**{**fields, **changes})


@pytest.fixture(scope="session")
def description() -> Callable[..., ModelDescription]:
    """`description(**changes)`: INT64 input `ids` [-1, -1] of at most 8, output `sum` [-1]."""
    return described


@pytest.fixture(scope="session")
def encoder() -> Callable[..., ModelDescription]:
    """`encoder(**changes)`: ids, an optional mask and types, hidden [-1, -1, 2] and pooled."""

    def build(**changes: Any) -> ModelDescription:
        fields: dict[str, Any] = {
            "name": "encoder",
            "task": "embed",
            "inputs": (
                TensorSpec("ids", "INT64", (-1, -1)),
                TensorSpec("mask", "INT64", (-1, -1)),
                TensorSpec("types", "INT64", (-1, -1)),
            ),
            "outputs": (
                TensorSpec("hidden", "FP32", (-1, -1, 2)),
                TensorSpec("pooled", "FP32", (-1, 2)),
            ),
            "mask_input": "mask",
            "optional_inputs": ("mask", "types"),
            "embed_output": "pooled",
            "embed_width": 2,
        }
        return described(**{**fields, **changes})

    return build
