"""`record`: whether, where and how much of callers' requests to a model is recorded.

Off unless a folder is named. The files hold callers' inputs, so only the user that runs the server
may read them, and a tenant may be left out (`tenants.<name>.record`). Bounds are for each gateway.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints

from deployments.settings import remote_source
from deployments.settings.gone import GONE
from yaml_document.section import Section


def _writable(folder: str) -> str:
    """The folder as it is. Raises ValueError for a URL that cannot be written to."""
    if not remote_source.is_url(folder):
        return folder
    try:
        if folder.startswith("file://"):
            remote_source.local_path(folder)
    except remote_source.SourceError as error:
        raise ValueError(str(error)) from None
    if folder.partition("://")[0] in remote_source.HTTP or "#" in folder or "@" in folder:
        raise ValueError(
            f"{remote_source.redacted(folder)} cannot be written to; must be a folder or an object "
            "store's URL, such as s3://bucket/recorded/minilm, without a digest or password"
        )
    return folder


MAX_BYTES = 64 << 20  # of inputs that a gateway records
Folder = Annotated[str, StringConstraints(min_length=1), AfterValidator(_writable)]


class RecordSettings(Section):
    gone = GONE["record"]
    folder: Folder | None = Field(
        default=None,
        examples=["recorded/minilm or s3://bucket/recorded/minilm"],
        description="Folder that gateways record to, relative to this file, or an object store's "
        "URL. Unset: nothing is recorded. The files hold callers' inputs; for a model that "
        "generates, only the lengths of prompts and outputs.",
    )
    max_rows: int = Field(
        default=2000,
        ge=1,
        le=1_000_000,
        description="Most rows whose inputs are recorded: equally many of each length bucket, "
        f"sampled evenly from all that arrived, and at most {MAX_BYTES >> 20} MiB.",
    )
    max_requests: int = Field(
        default=1_000_000,
        ge=0,
        le=1_000_000_000,
        description="Requests whose arrival time, lengths and tenant are recorded: the first ones, "
        "up to this number. 0: none.",
    )


def shared_folders(models: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """(path, error) of each `record.folder` that an earlier model uses too.

    A calibration from a shared folder would use the other model's inputs. `models`: name to plain
    data with `record`.
    """
    owner: dict[str, str] = {}
    for name, model in models.items():
        record = model.get("record") if isinstance(model, Mapping) else None
        folder = record.get("folder") if isinstance(record, Mapping) else None
        if not isinstance(folder, str):
            continue
        other = owner.setdefault(os.path.normpath(folder.removeprefix("file://")), name)
        if other != name:
            yield (
                ("models", name, "record", "folder"),
                f"is also the folder of models.{other}; must be a folder of its own",
            )
