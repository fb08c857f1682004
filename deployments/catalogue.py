"""The models a gateway serves: follows the registry, keeps one `ServedModel` each.

A model that is declared and was ready is kept while it changes hands (its queue holds); one that is
no longer declared is closed: what waits is refused, what runs finishes. Looking a model up answers
404 for undeclared, 503 for declared and not ready.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from deployments import errors
from deployments.applications import book_key, model_app
from deployments.description import ModelDescription
from deployments.ledger import book_for
from deployments.preprocess.tokenizer import TextTokenizer
from deployments.registry import View
from deployments.served_model import ServedModel
from deployments.tickets import BatchRecord
from deployments.transport import ServeTransport

_WATCH_S = 5.0
_SEED_S = 30.0
_HOLD_S = 30.0
_RETRY_AFTER_S = 2.0
_SHOWN = 100
logger = logging.getLogger("headrace.catalogue")


class Catalogue:
    """`cache_bytes`: bound of each tokeniser's cache of frequent texts. `on_change` is called when
    the set of models changed, before requests can find them ready."""

    def __init__(
        self,
        registry: Any,
        gateway: str,
        cache_bytes: int,
        on_batch: Callable[[str, BatchRecord], None],
    ) -> None:
        self._registry = registry
        self._gateway = gateway
        self._cache_bytes = cache_bytes
        self._on_batch = on_batch
        self.on_change: Callable[[], None] = lambda: None
        self._served: dict[str, ServedModel] = {}
        self._live: dict[str, ModelDescription] = {}
        self._gone_at: dict[str, float] = {}
        self._declared: frozenset[str] = frozenset()
        self._awaited: set[str] | None = None
        self.draining = False

    async def follow(self) -> None:
        """Runs until cancelled; a registry that is away for a moment changes nothing."""
        revision = 0
        while True:
            try:
                view: View = await self._registry.watch.remote(revision, _WATCH_S)
                if view.revision != revision:
                    await self._take(view)
                revision = view.revision
            except asyncio.CancelledError:
                raise
            except Exception:
                logger.exception("the registry did not answer; trying again")
                await asyncio.sleep(0.5)

    # ---- lookups --------------------------------------------------------------------------

    def find(self, name: str, version: str | None = None) -> ServedModel:
        """Raises NotFound or NotReady."""
        model = self._served.get(name)
        if model is None:
            if name in self._declared:
                raise errors.NotReady(
                    f"model {name} is declared and not ready yet", retry_after_s=_RETRY_AFTER_S
                )
            raise errors.NotFound(
                f"unknown model {name[:_SHOWN]!r}; GET /v1/models lists the models", param="model"
            )
        if version is not None and version != model.description.version:
            raise errors.NotFound(
                f"model {name} has no version {version[:_SHOWN]!r}; "
                f"{model.description.version} is live"
            )
        if name not in self._live and not self._holds(name, model):
            raise errors.NotReady(
                f"model {name} has no replica at the moment", retry_after_s=_RETRY_AFTER_S
            )
        return model

    def _holds(self, name: str, model: ServedModel) -> bool:
        """A model that changes hands keeps taking requests for a while."""
        return model.replicas > 0 or time.monotonic() - self._gone_at.get(name, 0.0) < _HOLD_S

    def ready(self, name: str) -> bool:
        model = self._served.get(name)
        return model is not None and name in self._live and model.replicas > 0

    @property
    def all_ready(self) -> bool:
        """Every model that was declared when this gateway started has been hot once."""
        return self._awaited is not None and not self._awaited and not self.draining

    @property
    def descriptions(self) -> list[ModelDescription]:
        return [self._served[name].description for name in sorted(self._served)]

    @property
    def waiting_for(self) -> list[str]:
        """Declared models that are not ready."""
        return sorted(name for name in self._declared if not self.ready(name))

    @property
    def served(self) -> dict[str, ServedModel]:
        return self._served

    # ---- following ------------------------------------------------------------------------

    async def _take(self, view: View) -> None:
        self.draining = view.draining
        self._declared = view.declared
        if self._awaited is None and view.declared:
            self._awaited = set(view.declared)
        for name in [n for n in self._served if n not in view.declared]:
            self._served.pop(name).close()
        for name in self._live.keys() - view.models.keys():
            self._gone_at[name] = time.monotonic()
        for description in view.models.values():
            await self._serve(description)
        self._live = dict(view.models)
        self.on_change()
        if self._awaited is not None:
            self._awaited -= {name for name in self._live if name in self._served}

    async def _serve(self, description: ModelDescription) -> None:
        name = description.name
        served = self._served.get(name)
        if served is not None and served.description == description:
            return
        tokenizer = await self._tokenizer(description)
        if served is not None:
            served.replace(description, tokenizer)
            return
        transport = ServeTransport(model_app(name))
        await transport.seed(_SEED_S)
        self._served[name] = ServedModel(
            description, tokenizer, transport, book_for(book_key(name)), self._gateway,
            self._on_batch,
        )  # fmt: skip

    async def _tokenizer(self, d: ModelDescription) -> TextTokenizer | None:
        if not d.tokenizer_digest or d.task == "tensors":
            return None
        blob: bytes = await self._registry.blob.remote(d.tokenizer_digest)
        return TextTokenizer(blob, d.max_length, d.truncate, self._cache_bytes)
