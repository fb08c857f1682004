"""What is different for a model that generates: which settings it has, and which it has not.

A replica of such a model streams: it batches by itself, so nothing that is said of batches, of
padding or of tensors holds for it. A setting that would do nothing is refused rather than ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from deployments.settings.generation import GenerationSettings
from deployments.settings.ladder import CacheSettings
from deployments.settings.lengths import LengthSettings
from deployments.settings.record import RecordSettings
from deployments.settings.scheduling import BatchSettings, HedgeSettings

if TYPE_CHECKING:
    from deployments.settings.model import ModelSettings

TTFT_MS = 1000.0
TIMEOUT_MS = 600_000.0
_LATENCY_MS = 100.0  # the default, which says nothing
RUNTIMES = ("vllm", "synthetic")

Complaint = tuple[tuple[str, ...], str]


def complaints(model: ModelSettings) -> Iterator[Complaint]:
    """Path and sentence of each setting that this task or runtime has no use for."""
    if model.runtime == "vllm" and model.task != "generate":
        yield ("task",), f"is {model.task}; must be generate, which is what vllm does"
    elif model.task != "generate":
        yield from _of_batches(model)
    elif model.runtime not in RUNTIMES:
        yield ("runtime",), f"is {model.runtime}, which generates nothing; must be vllm"
    else:
        yield from _of_streams(model)


def _of_batches(model: ModelSettings) -> Iterator[Complaint]:
    for name in ("ttft_ms", "tpot_ms"):
        if getattr(model.slo, name) is not None:
            yield ("slo", name), "must be left out: only task generate has tokens to wait for"
    if model.generation != GenerationSettings():
        yield ("generation",), f"must be left out: task {model.task} generates nothing"


def _of_streams(model: ModelSettings) -> Iterator[Complaint]:
    if model.slo.latency_ms != _LATENCY_MS:
        yield ("slo", "latency_ms"), "must be left out: what is promised is ttft_ms and tpot_ms"
    if model.batch != BatchSettings():
        yield ("batch",), "must be left out: the engine batches by itself"
    if _changed(model.hedge, HedgeSettings(), but=("budget",)):
        yield ("hedge",), "must be left out but for budget: a request that streams is not copied"
    if model.cache != CacheSettings():
        yield ("cache",), "must be left out: answers that stream are not kept"
    if model.accept.asked:
        yield ("accept",), "must be left out: answers of an engine have no bounds to be held to"
    if model.record != RecordSettings():
        yield ("record",), "must be left out: prompts are not kept"
    if model.coalesce:
        yield ("coalesce",), "must be left out: answers that stream are not shared"
    plain = LengthSettings(max=model.lengths.max)
    for name in ("input", "axis", "mask", "truncate", "switch_ms", "adapt"):
        if getattr(model.lengths, name) != getattr(plain, name):
            yield ("lengths", name), "must be left out: a prompt has no tensors and is not padded"


def _changed(section: Any, default: Any, but: tuple[str, ...]) -> bool:
    names = type(section).model_fields.keys() - set(but)
    return any(getattr(section, name) != getattr(default, name) for name in names)
