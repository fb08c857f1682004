"""What does vLLM's cache of prompts hold, as told from its own process to the replica's?

The engine's block events say which blocks a step has touched. Whether each is there afterwards its
block pool says, since a block that two requests computed has two events for each change. What has
changed travels with the step's own statistics, before or with the tokens of the step: so there is
no further socket, and nothing to order. Each report has a number. Where one is missing all blocks
are asked for with the next request. Requests whose prompts the gateway knows by hashes are reported
with the engine's hashes of their blocks, by a number in their sampling parameters.

Models with one kind of full attention only: elsewhere a block that is held need not be a prefix
that can be used. Leans on vLLM 0.32's insides.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any

from vllm import envs
from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import AllBlocksCleared, EventPublisher
from vllm.v1.core.kv_cache_utils import get_block_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

from runtimes.types import BlockAccount

_REQUEST, _ALL = "headrace_request", "headrace_all_blocks"
_FULL_ATTENTION = (FullAttentionSpec, MLAAttentionSpec)
_BYTES = 8  # of the engine's hash of a block, which has 32
_ALL_TOUCHED = 100_000  # in one step: then all that is held is told


def told_of() -> KVEventsConfig:
    return KVEventsConfig(enable_kv_cache_events=True, publisher="null")


def asked(sampling: Any, number: int, *, everything: bool) -> Any:
    """The parameters of a request that is to be reported by this number."""
    made = copy(sampling)
    made.extra_args = {**(sampling.extra_args or {}), _REQUEST: number}
    if everything:
        made.extra_args[_ALL] = True
    return made


# ---- in the engine's process ------------------------------------------------------------------


class TellsBlocks:
    """Part of a scheduler: what it does besides vLLM's own."""

    _told: _Changes | None = None

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        manager: Any = self
        groups, pool = manager.kv_cache_config.kv_cache_groups, manager.kv_cache_manager.block_pool
        spec: Any = groups[0].kv_cache_spec if len(groups) == 1 else None
        caches = pool.enable_caching and type(spec) in _FULL_ATTENTION
        if caches and spec.block_size == pool.hash_block_size:
            envs.VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES = False  # the pool is asked by the whole
            self._told = manager.kv_event_publisher = _Changes(pool)

    def add_request(self, request: Any) -> None:
        super().add_request(request)  # type: ignore[misc]
        if self._told is not None and request.sampling_params is not None:
            self._told.asked(request, request.sampling_params.extra_args or {})

    def make_stats(self, *args: Any, **more: Any) -> Any:
        stats = super().make_stats(*args, **more)  # type: ignore[misc]
        if stats is not None and self._told is not None:
            stats.kv_connector_stats = self._told.take()
        return stats


class _Changes(EventPublisher):  # type: ignore[misc]
    """Since the last report."""

    def __init__(self, pool: Any) -> None:
        super().__init__()
        self._pool = pool
        self._touched: dict[bytes, None] = {}
        self._asked: list[tuple[int, int, bytes]] = []
        self._all = True
        self._number = 0

    def publish(self, events: Any) -> None:
        for event in events.events:
            if isinstance(event, AllBlocksCleared):
                self._all = True
            else:
                self._touched.update(dict.fromkeys(event.block_hashes))

    def shutdown(self) -> None:
        pass

    def asked(self, request: Any, extra: dict[str, Any]) -> None:
        if _REQUEST in extra:
            prompt = request.num_prompt_tokens
            self._asked.append((extra[_REQUEST], prompt, _joined(request.block_hashes)))
        self._all = self._all or _ALL in extra

    def take(self) -> dict[str, Any] | None:
        if not (self._touched or self._asked or self._all):
            return None
        held: dict[bool, list[bytes]] = {True: [], False: []}
        everything = self._all or len(self._touched) > _ALL_TOUCHED
        if everything:
            cached = self._pool.cached_block_hash_to_block._cache
            held[True] = [get_block_hash(each) for each in cached]
        else:
            for each in self._touched:
                held[self._pool.get_cached_block(each, [0]) is not None].append(each)
        self._number += 1
        report = {
            "number": self._number, "all": everything, "asked": self._asked,
            "stored": _joined(held[True]), "removed": _joined(held[False]),
        }  # fmt: skip
        self._touched, self._asked, self._all = {}, [], False
        return report


def _joined(hashes: Iterable[bytes]) -> bytes:
    return b"".join([each[:_BYTES] for each in hashes])


# ---- in the replica's process -----------------------------------------------------------------


class BlockReports:
    """Takes the engine's reports, in order, into the index."""

    def __init__(self, index: BlockAccount) -> None:
        self.index = index
        self._last = 0
        self.wants_all = False  # to be asked for with the next request

    def take(self, report: dict[str, Any] | None) -> None:
        if report is None or "number" not in report:
            return
        follows = report["number"] == self._last + 1
        self._last = report["number"]
        if report["all"]:
            self.wants_all = False
            self.index.replace(_split(report["stored"]))
        elif not follows and self.index.known:
            self.index.lose()
        self.wants_all = self.wants_all or not self.index.known
        for number, tokens, blocks in report["asked"]:
            self.index.locate(number, _split(blocks), tokens)
        if self.index.known:
            self.index.update(_split(report["stored"]), _split(report["removed"]))


def _split(hashes: bytes) -> list[int]:
    return [
        int.from_bytes(hashes[at : at + _BYTES], "little") for at in range(0, len(hashes), _BYTES)
    ]
