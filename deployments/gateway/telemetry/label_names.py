"""The label values that metrics may carry: those that settings name; all others are `other`.

Keeps what callers write (an unknown tenant or model) from making new time series: the number of
series is bounded by the settings. It remembers no foreign name. Protocol, outcome and reason come
from our own tables and are not checked.
"""

from __future__ import annotations

from collections.abc import Iterable

from deployments.settings.gateway import PRIORITIES

OTHER = "other"


class LabelNames:
    """`priorities`: the gateway's, which don't change while it runs."""

    def __init__(
        self,
        models: Iterable[str] = (),
        tenants: Iterable[str] = (),
        priorities: Iterable[str] = PRIORITIES,
    ) -> None:
        self._models, self._tenants = frozenset(models), frozenset(tenants)
        self._priorities = tuple(priorities)

    def declare(
        self, models: Iterable[str] | None = None, tenants: Iterable[str] | None = None
    ) -> None:
        """Replaces the names that settings declare; None leaves a set as it is."""
        if models is not None:
            self._models = frozenset(models)
        if tenants is not None:
            self._tenants = frozenset(tenants)

    def model(self, name: str) -> str:
        return name if name in self._models else OTHER

    def flow(self, model: str, tenant: str, priority: str) -> tuple[str, str, str]:
        return (
            self.model(model),
            tenant if tenant in self._tenants else OTHER,
            priority if priority in self._priorities else OTHER,
        )

    def flow_at(self, model: str, tenant: str, rank: int) -> tuple[str, str, str]:
        """As `flow`, for a priority by its place, 0 the most urgent."""
        known = rank < len(self._priorities)
        return self.flow(model, tenant, self._priorities[rank] if known else OTHER)
