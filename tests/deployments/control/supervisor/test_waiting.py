"""What a model without a process waits for, in words that name the setting and what there is."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.control.supervisor.local_cluster import STARTS, why_waiting
from deployments.settings.model import ModelSettings

MIB = 1 << 20


def model(**replicas: Any) -> ModelSettings:
    return ModelSettings(runtime="synthetic", replicas={"count": 1, **replicas})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("replicas", "total", "free", "said"),
    [
        ({"num_gpus": 1}, {}, {}, "waits for 1 GPU (replicas.num_gpus): this machine has 0"),
        (
            {"num_gpus": 0.5},
            {"GPU": 1.0},
            {"GPU": 0.25},
            "waits for 0.5 GPU (replicas.num_gpus): 0.25 of 1 are free",
        ),
        ({"num_gpus": 1}, {"GPU": 1.0}, {"GPU": 1.0}, STARTS),
        ({}, {}, {}, STARTS),
        (
            {"memory_mib": 4096},
            {"memory": 2048 * MIB},
            {"memory": 2048 * MIB},
            "waits for 4096 MiB of memory (replicas.memory_mib): this machine has 2048",
        ),
        (
            {"resources": {"mig": 1}},
            {},
            {},
            "waits for 1 mig (replicas.resources.mig): this machine has 0",
        ),
    ],
)
def test_the_reason_names_what_is_short(
    replicas: dict[str, Any], total: dict[str, float], free: dict[str, float], said: str
) -> None:
    assert why_waiting(model(**replicas), total, free) == said
