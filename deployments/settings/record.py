"""Is what callers send to a model kept, where, and how much of it?

Off unless a folder is named. What is kept are callers' own inputs, so the files are for their owner
alone, and a tenant may be left out (`tenants.<name>.record`). Bounds hold for each gateway.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from deployments.settings.section import Section

PATHS = ("folder",)


class RecordSettings(Section):
    folder: Annotated[str, StringConstraints(min_length=1)] | None = Field(
        default=None,
        examples=["recorded/minilm"],
        description="Folder that gateways write to, relative to this file; unset, nothing is kept. "
        "Its files hold callers' inputs.",
    )
    max_rows: int = Field(
        default=2000,
        ge=1,
        le=1_000_000,
        description="Rows whose inputs are kept, as many of each length bucket, chosen evenly from "
        "all that came.",
    )
    max_bytes: int = Field(
        default=67_108_864,
        ge=1024,
        le=1_099_511_627_776,
        description="Bytes of inputs that are kept at most.",
    )
    max_requests: int = Field(
        default=1_000_000,
        ge=0,
        le=1_000_000_000,
        description="Requests whose time, length and tenant are kept, the first ones; 0: none.",
    )
