"""Every metric's name, kind, labels and help text."""

from __future__ import annotations

from collections.abc import Mapping

from deployments.gateway.telemetry.levels import GatewayLevels
from deployments.gateway.telemetry.metrics import GatewayMetrics
from deployments.gateway.tenancy.fair_thread_pool import FairThreadPool


def pages() -> Mapping[str, bytes]:
    pool = FairThreadPool(1, 1)
    levels = GatewayLevels(preprocess=pool.statistics())
    pool.close()
    metrics = GatewayMetrics("gateway-0", ("model",), ("tenant",), lambda: levels)
    lines = []
    for family in metrics.collect():
        labels = getattr(family, "_labelnames", ())
        lines.append(
            f"{family.name} {family.type} {','.join(labels)}\n    {family.documentation}\n"
        )
    return {"metrics.txt": "".join(lines).encode()}
