"""Runs vLLM's engine and OpenAI layer without its HTTP server: bodies in, server-sent events out.

Everything is constructed as by `vllm serve`, from the same arguments, so that answers and errors
are vLLM's own. With `counts.py` and `endpoints.py`, this is the only module that knows how vLLM
0.32 is put together; before another version is used, it must pass the conformance suite.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import ValidationError
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.launchers.launcher import validate_api_server_args
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from runtimes.adapters import AdapterUnavailable, ResidentAdapters
from runtimes.errors import LoadError, RunError
from runtimes.types import Chunk, EngineLoad, RuntimeSettings, StreamLimits, StreamRequest
from runtimes.vllm import (
    block_events,
    endpoints,
    grammars,
    media,
    refusals,
    structured_outputs,
    text_layer,
)
from runtimes.vllm.block_events import BlockReports
from runtimes.vllm.counts import TOKEN_COUNTER, Account, Counted, TokenCounter

_NO_FOLDER = "none"  # of an adapter that is not loaded


async def start(
    arguments: list[str], settings: RuntimeSettings, *, split_special_tokens: bool
) -> Serving:
    """Raises `LoadError` with vLLM's own words. Takes seconds to minutes; the loop stays free."""
    loop = asyncio.get_running_loop()
    serving = Serving(settings)
    try:
        parsed = _parsed(arguments)
        engine = await loop.run_in_executor(None, _engine, parsed, serving.account)
    except LoadError:
        raise
    except Exception as fault:
        raise LoadError(f"vLLM does not start: {_said(fault)}") from fault
    try:
        await serving.adopt(engine, parsed, split_special_tokens=split_special_tokens)
    except Exception as fault:
        await loop.run_in_executor(None, engine.shutdown)
        raise LoadError(f"vLLM does not start: {_said(fault)}") from fault
    return serving


def _parsed(arguments: list[str]) -> Any:
    def refuse(message: str) -> None:
        raise LoadError(f"vLLM does not take these options: {message}")

    parser = make_arg_parser(FlexibleArgumentParser())
    parser.error = refuse
    parsed = parser.parse_args(arguments)
    validate_api_server_args(parsed)
    return parsed


def _engine(parsed: Any, account: Account) -> AsyncLLM:
    """On a CPU its worker would be a further process, and between two steps each of the two would
    spin for the other: a processor that gateways and callers wait for."""
    workers = parsed.tensor_parallel_size * parsed.pipeline_parallel_size
    if current_platform.is_cpu() and workers == 1:
        parsed.distributed_executor_backend = "uni"
    config = AsyncEngineArgs.from_cli_args(parsed).create_engine_config()
    config.kv_events_config = block_events.told_of()
    scheduling = config.scheduler_config
    if scheduling.scheduler_cls is None:  # else the model needs one of its own
        scheduling.scheduler_cls = grammars.scheduler(is_async=scheduling.async_scheduling)
    return AsyncLLM.from_vllm_config(
        config, stat_loggers=[account.logger()], disable_log_stats=True
    )


class Serving:
    def __init__(self, settings: RuntimeSettings) -> None:
        self._blocks = BlockReports(settings.blocks)
        self.account = Account(self._stepped, self._blocks)
        self._name = settings.name
        self.adapters = ResidentAdapters(
            settings.adapters, settings.adapters_resident, self._load_adapter, self._unload_adapter
        )
        self._has_adapters = settings.adapters_resident > 0
        self._loaded: dict[str, LoRARequest] = {}  # by the name that callers know
        self._adapter_ids = itertools.count(1)
        self._whole: set[TokenCounter] = set()  # of answers that come whole

    async def adopt(self, engine: AsyncLLM, parsed: Any, *, split_special_tokens: bool) -> None:
        self._engine = engine
        text_layer.begin_answers_behind_prompts()
        state: Any = SimpleNamespace()
        tasks = await engine.get_supported_tasks()
        counted: Any = Counted(engine, self._loaded, self._blocks)
        await init_app_state(counted, state, parsed, tasks)
        self._shown = state.openai_serving_models.lora_requests
        if state.openai_serving_completion is None:
            raise LoadError("this model generates no text")
        special = text_layer.split_special_tokens(engine.renderer) if split_special_tokens else None
        self._endpoints = endpoints.of_state(state, special)

    @property
    def dead(self) -> bool:
        return bool(self._engine.errored)

    def load(self) -> EngineLoad:
        if not self._has_adapters:
            return self.account.load
        return replace(self.account.load, adapters=self.adapters.load)

    async def _load_adapter(self, name: str, folder: Path, digest: str) -> None:
        """The engine caches prompts by an adapter's name: another content has another one."""
        own = f"{self._name}:{name}"
        request = LoRARequest(f"{own}@{digest[:8]}", next(self._adapter_ids), str(folder))
        if not await self._engine.add_lora(request):
            raise LoadError("the engine did not take it")
        self._loaded[own] = request

    async def _unload_adapter(self, name: str) -> None:
        await self._engine.remove_lora(self._loaded.pop(f"{self._name}:{name}").lora_int_id)

    async def _use_adapter(self, model: str, counter: TokenCounter, *, generates: bool) -> None:
        """Waits for the adapter that the request names, if it does, and generates: counts need
        none. Raises AdapterUnavailable."""
        name = model.removeprefix(f"{self._name}:")
        if name == model:
            return
        if name not in self.adapters:
            self._shown.pop(model, None)  # it was taken out
            return
        if generates:
            await self.adapters.use(name)
            counter.adapter = name
        if model not in self._shown:  # what callers see; the engine gets another name
            self._shown[model] = LoRARequest(model, 1, _NO_FOLDER, base_model_name=self._name)

    def limits(self, precision: str) -> StreamLimits:
        config = self._engine.vllm_config
        cache = config.cache_config
        places = cache.kv_cache_size_tokens or (cache.num_gpu_blocks or 0) * cache.block_size
        return StreamLimits(
            context_tokens=config.model_config.max_model_len,
            cache_tokens=places,
            max_sequences=config.scheduler_config.max_num_seqs,
            block_tokens=cache.block_size if cache.enable_prefix_caching else 0,
            precision=precision,
            device=current_platform.device_type,
            platform="vllm",
        )

    async def sleep(self) -> None:
        """vLLM's level 1. On processors, where weights have no other place, its cache is emptied
        and keeps its memory."""
        if self._engine.output_processor.has_unfinished_requests():
            raise RunError("requests run")
        try:
            await self._engine.sleep(1)
        except Exception as fault:
            raise RunError(f"vLLM does not sleep: {_said(fault)}") from fault
        if self._blocks.index.known:
            self._blocks.index.replace(())  # the engine itself tells with its next step

    async def wake(self) -> None:
        try:
            awake = await self._engine.wake_up()
        except Exception as fault:
            raise RunError(f"vLLM does not wake: {_said(fault)}") from fault
        if not awake:
            raise RunError("vLLM does not wake: a part of its memory is still away")

    def shutdown(self) -> None:
        self._engine.shutdown()

    async def answers(self, request: StreamRequest) -> AsyncGenerator[Chunk, None]:
        counter = TokenCounter(self._engine.vllm_config.cache_config.block_size)
        index = self._blocks.index
        counter.asked = index.ask(request.hashes, request.hashed_tokens)
        context = contextvars.copy_context()
        context.run(TOKEN_COUNTER.set, counter)
        begun = asyncio.get_running_loop().create_task(
            self._begin(request, counter), context=context
        )
        begun.add_done_callback(lambda _: counter.moved.set())
        try:
            while not begun.done():
                await counter.moved.wait()
                counter.moved.clear()
                if not begun.done():
                    yield counter.chunk(b"")
            answer = begun.result()
            if isinstance(answer, tuple):
                yield counter.chunk(*answer)
                return
            async with aclosing(refusals.answer(answer, lambda: counter.has_output)) as pieces:
                async for piece in pieces:
                    yield counter.chunk(*piece)
        finally:
            index.done(counter.asked)
            self._whole.discard(counter)
            begun.cancel()
            await asyncio.gather(begun, return_exceptions=True)
            # Each aborts what the engine still holds of it; done here, so that it is done now.
            for generator in counter.generators:
                with suppress(RuntimeError):  # it is being read by a task that is just ending
                    await generator.aclose()
            if counter.adapter:
                self.adapters.done(counter.adapter)

    async def _begin(self, request: StreamRequest, counter: TokenCounter) -> Any:
        """A body and its status, or the generator of what streams."""
        endpoint, loop = self._endpoints[request.endpoint], asyncio.get_running_loop()
        parsed: Any = None
        try:
            parsed = endpoint.read(request.body)
            asked = await endpoint.asked(parsed)
            if request.salt and (found := media.parts(endpoint.media_in(asked))):
                await loop.run_in_executor(None, media.salt, found, request.salt)
            if endpoint.generates:
                asked.priority = request.priority
                # Counts are kept by this name, and two callers may give the same.
                asked.request_id = f"{endpoint.id_prefix}{uuid.uuid4().hex}"
                if request.salt:
                    asked.cache_salt = f"{request.salt}/{asked.cache_salt or ''}"
                if not asked.stream:
                    self._whole.add(counter)
                check = partial(endpoint.check_form, tools_as_schema=self._tools_are_schemas)
                await loop.run_in_executor(None, check, asked)
            name = str(parsed.model)
            await self._use_adapter(name, counter, generates=endpoint.generates)
            answer = await endpoint.answer(asked)
        except ValidationError as fault:
            message, param = refusals.sentence(fault)
            answer = create_error_response(message, param=param)
        except AdapterUnavailable as fault:
            unavailable = HTTPStatus.SERVICE_UNAVAILABLE
            answer = create_error_response(
                str(fault), "ServiceUnavailableError", unavailable, "model"
            )
            return answer.model_dump_json().encode(), unavailable.value
        except structured_outputs.Unsupported as fault:
            answer = create_error_response(str(fault), param=fault.field)
        except (EngineDeadError, EngineGenerateError) as fault:
            raise RunError(f"vLLM failed: {_said(fault)}") from fault
        except Exception as fault:
            answer = create_error_response(fault)
            if parsed is None and refusals.is_failure(answer.error.code):
                # Its checks of a body look into what may not be there.
                said = f"{type(fault).__name__}: {_said(fault)}"
                answer = create_error_response(f"the request cannot be read: {said}")
        if isinstance(answer, ErrorResponse):
            if refusals.is_failure(answer.error.code):
                raise RunError(f"vLLM failed: {answer.error.message}")
            return answer.model_dump_json().encode(), answer.error.code
        if hasattr(answer, "model_dump_json"):
            return endpoint.written(answer), 200
        return answer

    @property
    def _tools_are_schemas(self) -> bool:
        """Whether arguments of a forced tool keep to its parameters even where it is not strict."""
        parsers = getattr(self._endpoints["chat"].serving, "parser_cls", None)
        parser = getattr(parsers, "tool_parser_cls", None)
        return parser is None or parser.supports_required_and_named

    def _stepped(self) -> None:
        for counter in self._whole:
            counter.refresh(self._engine.output_processor)


def _said(fault: BaseException) -> str:
    """In one line, by what is at the bottom of it: vLLM wraps its faults."""
    while fault.__cause__ is not None:
        fault = fault.__cause__
    if isinstance(fault, ValidationError):
        return "; ".join(str(error["msg"]) for error in fault.errors())
    words = str(fault.args[0]) if isinstance(fault, KeyError) else str(fault)
    return next(iter(words.strip().splitlines()), type(fault).__name__)
