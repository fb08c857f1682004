"""`record`: whether, where and how much of what callers send to a model is kept.

Off unless a folder is named. What is kept are callers' own inputs, so the files are for their owner
alone, and a tenant may be left out (`tenants.<name>.record`). Bounds hold for each gateway.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints

from deployments.settings import remote_source
from yaml_document.section import Section


def _writable(folder: str) -> str:
    """Raises ValueError for a URL that nothing can be written to."""
    if not remote_source.is_url(folder):
        return folder
    try:
        if folder.startswith("file://"):
            remote_source.local_path(folder)
    except remote_source.SourceError as error:
        raise ValueError(str(error)) from None
    if folder.partition("://")[0] in remote_source.HTTP or "#" in folder or "@" in folder:
        raise ValueError(
            f"{remote_source.shown(folder)} cannot be written to; must be a folder or an object "
            "store's URL, such as s3://bucket/recorded/minilm, without a digest or password"
        )
    return folder


Folder = Annotated[str, StringConstraints(min_length=1), AfterValidator(_writable)]


class RecordSettings(Section):
    folder: Folder | None = Field(
        default=None,
        examples=["recorded/minilm or s3://bucket/recorded/minilm"],
        description="Folder that gateways write to, relative to this file, or an object store's "
        "URL; unset, nothing is kept. Its files hold callers' inputs; of a model that generates "
        "lengths of prompts and outputs alone.",
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
        description="Requests whose time, lengths and tenant are kept, the first ones; 0: none.",
    )


def shared(models: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Path and sentence of every `record.folder` that an earlier model writes to: whoever read it
    would calibrate one model with the other's inputs.

    `models`: name to a mapping with `record`, as a file has them.
    """
    owner: dict[str, str] = {}
    for name, model in models.items():
        record = model.get("record") if isinstance(model, Mapping) else None
        folder = record.get("folder") if isinstance(record, Mapping) else None
        if not isinstance(folder, str):
            continue
        other = owner.setdefault(os.path.normpath(folder.removeprefix("file://")), name)
        if other != name:
            yield ("models", name, "record", "folder"), f"is models.{other}'s; must be its own"
