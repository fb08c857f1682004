"""docs/settings.md as it would be written now."""

from __future__ import annotations

from collections.abc import Mapping

from deployments.tools.console import settings_page


def pages() -> Mapping[str, bytes]:
    return {"settings.md": settings_page.page().encode()}
