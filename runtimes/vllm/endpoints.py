"""The ways to ask vLLM's layer: a body as vLLM reads it, and what comes of it.

Each endpoint is read, turned into what vLLM's engine side is asked (Anthropic's messages become a
chat), and answered: by a page, by events as text, or by vLLM's own error. An error within events is
raised as `refusals.Refused`: vLLM would write it in a form that loses its status (messages), or end
the connection (responses). Leans on vLLM 0.32's insides.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from pydantic import TypeAdapter, ValidationError
from vllm.entrypoints.anthropic.protocol import (
    AnthropicContextManagement,
    AnthropicCountTokensRequest,
    AnthropicCountTokensResponse,
    AnthropicMessagesRequest,
)
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
    ChatCompletionResponse,
)
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest, ResponsesResponse
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest

from runtimes.vllm import refusals, structured_outputs
from runtimes.vllm.counts import TOKEN_COUNTER
from runtimes.vllm.special_tokens import SpecialTokens

_tokenize: TypeAdapter[Any] = TypeAdapter(TokenizeRequest)


class Chat:
    """`generates`: the engine runs its model for it. `id_prefix`: of the names of its requests.
    `special`: whose names in texts are split, where the renderer does not see to that."""

    generates = True
    id_prefix = ""

    def __init__(self, serving: Any, special: SpecialTokens | None = None) -> None:
        self.serving = serving
        self._special = special

    def read(self, body: bytes) -> Any:
        """Raises ValidationError, and whatever vLLM's checks of a body raise."""
        return ChatCompletionRequest.model_validate_json(body)

    async def asked(self, parsed: Any) -> Any:
        """What is answered: has the fields that `Serving` sets."""
        return parsed

    def media_in(self, asked: Any) -> list[Any]:
        """Messages or items that may hold images and sounds."""
        return list(asked.messages)

    def check_form(self, asked: Any, *, tools_as_schema: bool) -> None:
        """Raises Unsupported. Takes milliseconds."""
        structured_outputs.check_request(asked, tools_as_schema=tools_as_schema)

    async def answer(self, asked: Any) -> Any:
        """An error, a page, or an iterator of events."""
        return await self.serving.create_chat_completion(asked)

    def written(self, page: Any) -> bytes:
        text: str = page.model_dump_json()
        return text.encode()


class Completion(Chat):
    def read(self, body: bytes) -> Any:
        return CompletionRequest.model_validate_json(body)

    async def asked(self, parsed: Any) -> Any:
        if self._special is not None:
            parsed.prompt = self._special.broken(parsed.prompt)
        return parsed

    def media_in(self, asked: Any) -> list[Any]:
        return []

    async def answer(self, asked: Any) -> Any:
        return await self.serving.create_completion(asked)


class Messages(Chat):
    """As vLLM's own handler does it, with a chat in between that can be looked at."""

    def read(self, body: bytes) -> Any:
        return AnthropicMessagesRequest.model_validate_json(body)

    async def asked(self, parsed: Any) -> Any:
        effort = "none"
        if parsed.thinking is not None and parsed.thinking.type == "disabled":
            effort = await self.serving._get_disabled_thinking_effort()
        return self.serving.to_chat_completion_request(
            parsed,
            merge_inline_system=self.serving._merge_inline_system,
            disabled_thinking_effort=effort,
        )

    def check_form(self, asked: Any, *, tools_as_schema: bool) -> None:
        names = structured_outputs.ANTHROPIC
        structured_outputs.check_request(asked, tools_as_schema=tools_as_schema, names=names)

    async def answer(self, asked: Any) -> Any:
        made = await self.serving.create_chat_completion(asked)
        if isinstance(made, ErrorResponse):
            return made
        if isinstance(made, ChatCompletionResponse):
            return self.serving.messages_full_converter(made)
        return self._events(made)

    async def _events(self, chat: Any) -> AsyncIterator[str]:
        whole = _WithoutError(chat)
        async with aclosing(self.serving.message_stream_converter(whole)) as events:
            async for event in events:
                if event.startswith("event: error"):  # the converter's own
                    raise refusals.Refused.failed(event)
                yield event
        if whole.error is not None:
            raise refusals.Refused(whole.error)

    def written(self, page: Any) -> bytes:
        text: str = page.model_dump_json(exclude_none=True)
        return text.encode()


class _WithoutError:
    """A chat's events up to an error, which vLLM's converter does not know."""

    def __init__(self, events: AsyncIterator[str]) -> None:
        self._events = events
        self.error: dict[str, Any] | None = None

    def __aiter__(self) -> _WithoutError:
        return self

    async def __anext__(self) -> str:
        event = await anext(self._events)
        self.error = refusals.error_of(event)
        if self.error is not None:
            raise StopAsyncIteration
        return event


class CountTokens(Messages):
    generates = False

    def read(self, body: bytes) -> Any:
        return AnthropicCountTokensRequest.model_validate_json(body)

    async def answer(self, asked: Any) -> Any:
        made = await self.serving.render_chat_request(asked)
        if isinstance(made, ErrorResponse):
            return made
        _, prompts = made
        count = sum(len(prompt.get("prompt_token_ids", ())) for prompt in prompts)
        managed = AnthropicContextManagement(original_input_tokens=count)
        return AnthropicCountTokensResponse(input_tokens=count, context_management=managed)


class Responses(Chat):
    """Nothing is kept, and answers say so."""

    id_prefix = "resp_"

    def read(self, body: bytes) -> Any:
        return ResponsesRequest.model_validate_json(body)

    def media_in(self, asked: Any) -> list[Any]:
        return asked.input if isinstance(asked.input, list) else []

    def check_form(self, asked: Any, *, tools_as_schema: bool) -> None:
        structured_outputs.check_response(asked, tools_as_schema=tools_as_schema)

    async def answer(self, asked: Any) -> Any:
        made = await self.serving.create_responses(asked)
        return made if hasattr(made, "model_dump_json") else await _asked(self._events(made))

    async def _events(self, made: Any) -> AsyncIterator[str]:
        async with aclosing(made) as events:
            try:
                async for event in events:
                    if isinstance(response := getattr(event, "response", None), ResponsesResponse):
                        response.store = False
                    data = event.model_dump_json(by_alias=True)
                    yield f"event: {event.type}\ndata: {data}\n\n"
            except ValidationError as fault:  # of an event: vLLM makes errors of the engine such
                raise refusals.Refused.failed(str(fault.__context__ or fault)) from fault
            except Exception as fault:
                error = create_error_response(fault).error
                raise refusals.Refused(error.model_dump()) from fault

    def written(self, page: Any) -> bytes:
        if isinstance(page, ResponsesResponse):
            page.store = False
        text: str = page.model_dump_json(by_alias=True)
        return text.encode()


async def _asked(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """The same events, once they have asked the engine: whose request that is the context says, and
    only while this is awaited."""
    counter, first = TOKEN_COUNTER.get(), list[str]()
    error: Exception | None = None
    try:
        while counter is not None and not counter.names:
            first.append(await anext(events))
    except (StopAsyncIteration, refusals.Refused) as end:
        error = end

    async def following() -> AsyncIterator[str]:
        for event in first:
            yield event
        if isinstance(error, refusals.Refused):
            raise error
        async for event in events:
            yield event

    return following()


class Tokenize(Chat):
    generates = False

    def read(self, body: bytes) -> Any:
        return _tokenize.validate_json(body)

    async def asked(self, parsed: Any) -> Any:
        if self._special is not None and hasattr(parsed, "prompt"):
            parsed.prompt = self._special.broken(parsed.prompt)
        return parsed

    def media_in(self, asked: Any) -> list[Any]:
        return []  # none of it is cached

    async def answer(self, asked: Any) -> Any:
        return await self.serving.create_tokenize(asked, None)


class Detokenize(Tokenize):
    def read(self, body: bytes) -> Any:
        return DetokenizeRequest.model_validate_json(body)

    async def asked(self, parsed: Any) -> Any:
        return parsed

    async def answer(self, asked: Any) -> Any:
        return await self.serving.create_detokenize(asked, None)


def of_state(state: Any, special: SpecialTokens | None) -> Mapping[str, Chat]:
    """By the name in `StreamRequest.endpoint`. `state`: of vLLM's app."""
    return {
        "chat": Chat(state.openai_serving_chat),
        "completions": Completion(state.openai_serving_completion, special),
        "messages": Messages(state.anthropic_serving_messages),
        "count_tokens": CountTokens(state.anthropic_serving_messages),
        "responses": Responses(state.openai_serving_responses),
        "tokenize": Tokenize(state.serving_tokenization, special),
        "detokenize": Detokenize(state.serving_tokenization),
    }
