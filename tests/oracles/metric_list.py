"""Every metric's name, kind, labels and help text."""

from __future__ import annotations

from collections.abc import Mapping

from deployments.gateway.telemetry.metrics import GatewayMetrics


def pages() -> Mapping[str, bytes]:
    lines = []
    for family in GatewayMetrics("gateway-0", ("model",), ("tenant",)).collect():
        labels = getattr(family, "_labelnames", ())
        lines.append(
            f"{family.name} {family.type} {','.join(labels)}\n    {family.documentation}\n"
        )
    return {"metrics.txt": "".join(lines).encode()}
