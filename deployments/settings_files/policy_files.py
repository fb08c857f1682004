"""Copies the content of a user's scaling policy into the settings that name its file, so that
nothing opens the file later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deployments.settings.scaling import POLICY_ENDINGS, PolicyFile
from yaml_document.document import Document, read_file
from yaml_document.mistakes import Mistake, explain


def inline_policy_files(models: Any, document: Document, folder: Path) -> list[Mistake]:
    """Replace each policy's file name, in the plain data of models, by the file's content.

    Returns the mistakes in these files, and the names of files that do not exist.
    """
    mistakes: list[Mistake] = []
    for name, scaling in _sections(models):
        policy = scaling.get("policy")
        if isinstance(policy, str) and policy.endswith(POLICY_ENDINGS):
            file = folder / policy
            if not file.is_file():
                at = ("models", name, "scaling", "policy")
                mistakes.append(document.mistake(at, f"no file {str(file)!r}"))
                del scaling["policy"]
                continue
            scaling["policy"], wrongs = _content(file)
            mistakes += wrongs
    return mistakes


def _sections(models: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, model in models.items() if isinstance(models, dict) else ():
        scaling = model.get("scaling") if isinstance(model, dict) else None
        if isinstance(scaling, dict):
            yield name, scaling


def _content(file: Path) -> tuple[dict[str, Any], list[Mistake]]:
    """A policy file's fields, empty if anything is wrong with it; and its mistakes."""
    read = read_file(file)
    if read.mistakes:
        return {}, read.mistakes
    if not isinstance(read.data, dict):
        return {}, [read.mistake((), "must be a mapping, such as knee: 0.8")]
    try:
        PolicyFile.model_validate(read.data)
    except ValidationError as error:
        return {}, explain(error, PolicyFile, read.mistake)
    return read.data, []
