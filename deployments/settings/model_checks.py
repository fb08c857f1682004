"""What only this machine or the backend can tell of a model: is the artifact there, are options right?

Asked of every model that is right by itself, so that its mistakes come with all the others.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping

from pydantic import ValidationError

from deployments.settings import sources
from deployments.settings.lines import Document
from deployments.settings.mistakes import Mistake
from deployments.settings.model import ModelSettings


def model_mistakes(document: Document, artifacts: bool) -> list[Mistake]:
    """What only the machine or the backend can tell, of every model that is right by itself."""
    models = document.data.get("models")
    mistakes = []
    for name, raw in models.items() if isinstance(models, dict) else ():
        try:
            model = ModelSettings.model_validate(raw)
        except ValidationError:
            continue
        complaints = [*_source_complaints(model, artifacts), *_backend_complaints(model)]
        mistakes += [document.mistake(("models", name, at), message) for at, message in complaints]
    return mistakes


def _source_complaints(model: ModelSettings, artifacts: bool) -> list[tuple[str, str]]:
    if model.source is None or not artifacts:
        return []
    try:
        sources.resolve(model.source)
    except sources.SourceError as error:
        return [("source", str(error))]
    return []


def _backend_complaints(model: ModelSettings) -> list[tuple[str, str]]:
    check = _catalogue_check()
    try:
        check(model.runtime, {}, model.precision)
    except ValueError as error:
        return [("precision", str(error))]
    try:
        check(model.runtime, model.options, model.precision)
    except ValueError as error:
        return [("options", str(error))]
    return []


def _catalogue_check() -> Callable[[str, Mapping[str, Any], str], None]:
    """The backends' own check, its refusals turned into ValueError."""
    # Late: numpy comes with it, and reading a tenants file needs neither.
    if importlib.util.find_spec("runtimes.catalog") is None:
        return lambda runtime, options, precision: None
    from runtimes import catalog
    from runtimes.errors import LoadError

    def check(runtime: str, options: Mapping[str, Any], precision: str) -> None:
        try:
            catalog.check(runtime, options, precision)
        except LoadError as error:
            raise ValueError(str(error)) from None

    return check
