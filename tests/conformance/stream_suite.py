"""What every stream backend does alike: written once, run over each (see the modules named after
them). `runtime` is a loaded and warmed one, shared by a module's tests: each leaves it idle.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from stream_cases import CONTEXT, SEQUENCES, ask, chat, completion, hear

from runtimes.errors import RunError
from runtimes.types import EngineLoad, Sleeping, StreamRuntime


async def settled(runtime: StreamRuntime, within_s: float = 2.0) -> EngineLoad:
    """Its account once nothing runs or waits there."""
    async with asyncio.timeout(within_s):
        while (load := await runtime.health()).running or load.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return load


async def running(runtime: StreamRuntime, count: int) -> None:
    async with asyncio.timeout(5):
        while (await runtime.health()).running != count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class StreamSuite:
    @pytest.mark.parametrize("endpoint", ["completions", "chat"])
    async def test_what_it_holds_of_a_prompt_is_what_it_finds_again(
        self, runtime: StreamRuntime, endpoint: str
    ) -> None:
        """Here the caller counts as the engine does, but for the last block."""
        settings = runtime._settings  # type: ignore[attr-defined]
        index, size = settings.blocks, runtime.limits().block_tokens
        assert index.known
        said = f"{endpoint} is asked twice " * 12
        body = completion(said) if endpoint == "completions" else chat(said)
        tokens = (await hear(runtime, body, endpoint)).last.input_tokens
        hashes = tuple(hash((endpoint, at)) % 2**64 for at in range(tokens // size))
        again = await hear(runtime, body, endpoint, hashes=hashes, hashed_tokens=tokens)
        assert size <= again.last.cached_tokens <= size * len(hashes)
        assert sum(each in set(index.held()) for each in hashes) * size >= again.last.cached_tokens
        other = await hear(runtime, body, endpoint, "other", hashes=(1,), hashed_tokens=size)
        assert other.last.cached_tokens == 0

    async def test_what_streams_is_the_text_that_comes_whole(self, runtime: StreamRuntime) -> None:
        whole = await hear(runtime, completion())
        streamed = await hear(runtime, completion(stream=True))
        assert streamed.texts() == {0: whole.page()["choices"][0]["text"]}
        assert whole.status == streamed.status == 200

    async def test_a_chat_streams_the_message_that_comes_whole(
        self, runtime: StreamRuntime
    ) -> None:
        whole = await hear(runtime, chat(), "chat")
        streamed = await hear(runtime, chat(stream=True), "chat")
        assert whole.page()["object"] == "chat.completion"
        assert streamed.events()[0]["choices"][0]["delta"]["role"] == "assistant"
        assert streamed.texts() == {0: whole.page()["choices"][0]["message"]["content"]}

    async def test_tokens_come_one_step_after_the_other(self, runtime: StreamRuntime) -> None:
        heard = await hear(runtime, completion(stream=True, max_tokens=20))
        outputs = [chunk.output_tokens for chunk in heard.chunks]
        assert outputs == sorted(outputs)
        assert outputs[0] <= 2
        assert outputs[-1] == 20
        assert len(heard.chunks) >= 10

    async def test_counts_are_those_that_the_answer_states(self, runtime: StreamRuntime) -> None:
        heard = await hear(runtime, completion("seven is not " * 20, max_tokens=5))
        usage = heard.page()["usage"]
        assert heard.last.input_tokens == usage["prompt_tokens"]
        assert heard.last.output_tokens == usage["completion_tokens"] == 5

    async def test_usage_comes_last_in_a_stream_that_asks_for_it(
        self, runtime: StreamRuntime
    ) -> None:
        asked = completion(stream=True, stream_options={"include_usage": True}, max_tokens=6)
        heard = await hear(runtime, asked)
        *_, last = heard.events()
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 6
        assert last["usage"]["prompt_tokens"] == heard.last.input_tokens

    @pytest.mark.parametrize("n", [1, 2, SEQUENCES])
    async def test_n_sequences_are_answered(self, runtime: StreamRuntime, n: int) -> None:
        heard = await hear(runtime, completion(n=n, temperature=0.5, seed=1))
        assert [c["index"] for c in heard.page()["choices"]] == list(range(n))
        assert heard.last.output_tokens == 8 * n
        streamed = await hear(runtime, completion(n=n, temperature=0.5, seed=1, stream=True))
        assert sorted(streamed.texts()) == list(range(n))

    @pytest.mark.parametrize("count", [1, 2, SEQUENCES, SEQUENCES + 1])
    async def test_requests_at_once_do_not_mix(self, runtime: StreamRuntime, count: int) -> None:
        bodies = [completion(f"number {i} of them", max_tokens=12) for i in range(count)]
        alone = [(await hear(runtime, body)).page()["choices"] for body in bodies]
        heard = await asyncio.gather(*(hear(runtime, body) for body in bodies))
        assert [h.page()["choices"] for h in heard] == alone
        await settled(runtime)

    async def test_what_it_holds_is_told_and_freed(self, runtime: StreamRuntime) -> None:
        heard = await hear(runtime, completion("a b c d " * 16, stream=True, max_tokens=40))
        most = max(chunk.held_tokens for chunk in heard.chunks)
        needed = heard.last.input_tokens + 40
        assert needed - 1 <= most <= needed + runtime.limits().block_tokens
        load = await settled(runtime)
        assert load.cache_used <= 0.01

    async def test_counts_of_an_answer_that_does_not_stream_move_too(
        self, runtime: StreamRuntime
    ) -> None:
        heard = await hear(runtime, completion(max_tokens=100))
        assert heard.chunks[0].output_tokens < 50
        assert not heard.chunks[0].data

    @pytest.mark.parametrize("stream", [False, True])
    async def test_closing_the_iterator_frees_the_engine(
        self, runtime: StreamRuntime, stream: bool
    ) -> None:
        async with aclosing(runtime.run(ask(completion(stream=stream, max_tokens=400)))) as chunks:
            await anext(chunks)
            assert (await runtime.health()).running == 1
        load = await settled(runtime)
        assert load.cache_used <= 0.01

    async def test_a_cancelled_task_frees_the_engine(self, runtime: StreamRuntime) -> None:
        task = asyncio.create_task(hear(runtime, completion(max_tokens=400, n=2, temperature=0.5)))
        await running(runtime, 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await settled(runtime)

    async def test_one_that_still_waits_is_freed_too(self, runtime: StreamRuntime) -> None:
        tasks = [
            asyncio.create_task(hear(runtime, completion(f"number {i}", max_tokens=400)))
            for i in range(SEQUENCES + 2)
        ]
        await running(runtime, SEQUENCES)
        for task in reversed(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await settled(runtime)

    async def test_a_prompt_seen_before_is_read_from_the_cache(
        self, runtime: StreamRuntime
    ) -> None:
        prompt = "the same words again and again, " * 8
        before = await runtime.health()
        first = await hear(runtime, completion(prompt))
        second = await hear(runtime, completion(prompt))
        after = await runtime.health()
        block = runtime.limits().block_tokens
        assert first.last.cached_tokens < block
        assert second.last.cached_tokens >= (second.last.input_tokens - 1) // block * block
        assert first.page()["choices"] == second.page()["choices"]
        assert after.prefix_hits - before.prefix_hits == second.last.cached_tokens
        assert after.prefix_queries > before.prefix_queries

    async def test_it_sleeps_while_nothing_runs_and_awake_again_answers_as_before(
        self, runtime: StreamRuntime
    ) -> None:
        assert isinstance(runtime, Sleeping)
        asked = completion("words that are told apart by sleep, " * 8)
        first = await hear(runtime, asked)
        index, hashes = runtime._settings.blocks, (7, 8)  # type: ignore[attr-defined]
        said = {"hashes": hashes, "hashed_tokens": first.last.input_tokens}
        known = await hear(runtime, asked, **said)
        assert known.last.cached_tokens > 0
        assert set(hashes) & set(index.held())
        streams = asyncio.create_task(hear(runtime, completion(max_tokens=100, stream=True)))
        await running(runtime, 1)
        with pytest.raises(RunError, match="requests run"):
            await runtime.sleep()
        assert len((await streams).texts()[0]) > 0
        await settled(runtime)
        await runtime.sleep()
        assert not list(index.held())
        await runtime.wake()
        again = await hear(runtime, asked, **said)
        assert index.known
        assert set(hashes) & set(index.held())
        assert again.last.cached_tokens == first.last.cached_tokens == 0
        assert again.page()["choices"] == first.page()["choices"]

    @pytest.mark.parametrize("said", [{}, {"cache_salt": "acme"}])
    async def test_a_prompt_that_another_tenant_sent_is_not_found(
        self, runtime: StreamRuntime, said: dict[str, str]
    ) -> None:
        prompt = f"what acme asks again and again, {len(said)} " * 8
        block = runtime.limits().block_tokens
        counts = []
        for salt in ("acme", "batch", "acme", "batch"):
            heard = await hear(runtime, completion(prompt, **said), salt=salt)
            counts.append(heard.last.cached_tokens >= block)
            assert heard.status == 200
        assert counts == [False, False, True, True]

    async def test_steps_are_counted(self, runtime: StreamRuntime) -> None:
        before = await settled(runtime)
        await hear(runtime, completion(max_tokens=30))
        after = await settled(runtime)
        assert 29 <= after.steps - before.steps <= 34

    @pytest.mark.parametrize(
        ("body", "endpoint", "status", "param"),
        [
            (b"{", "completions", 400, None),
            (b"[]", "completions", 400, None),
            (b'{"model": "llm"}', "completions", 400, None),
            (b'{"model": "llm"}', "chat", 400, None),
            (b'{"model": "llm", "messages": []}', "chat", 400, None),
            (completion(model="other"), "completions", 404, "model"),
            (chat(model="other"), "chat", 404, "model"),
            (completion("a b c d " * CONTEXT), "completions", 400, None),
            (completion(n=0), "completions", 400, None),
            (completion(max_tokens=-1), "completions", 400, None),
        ],
    )
    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_request_that_is_wrong_gets_openais_error(
        self,
        runtime: StreamRuntime,
        body: bytes,
        endpoint: str,
        status: int,
        param: str | None,
        stream: bool,
    ) -> None:
        asked = body.replace(b'{"model"', b'{"stream": true, "model"') if stream else body
        heard = await hear(runtime, asked, endpoint)
        error = heard.page()["error"]
        assert heard.status == status
        assert error["code"] == status
        assert error["message"]
        assert {"type", "param"} <= error.keys()
        if param:
            assert error["param"] == param
        await settled(runtime)

    async def test_the_prompt_may_be_token_ids(self, runtime: StreamRuntime) -> None:
        heard = await hear(runtime, completion([5, 6, 7, 8, 9]))
        assert heard.last.input_tokens == 5

    async def test_limits_are_those_of_the_settings(self, runtime: StreamRuntime) -> None:
        limits = runtime.limits()
        assert limits.context_tokens == CONTEXT
        assert limits.max_sequences == SEQUENCES
        assert limits.cache_tokens >= CONTEXT
        assert limits.block_tokens >= 1
        assert limits.device
        assert limits.platform

    async def test_a_request_up_to_the_last_place_of_the_context_is_answered(
        self, runtime: StreamRuntime
    ) -> None:
        heard = await hear(runtime, completion([7] * (CONTEXT - 1), max_tokens=5))
        assert heard.status in (200, 400)
        full = await hear(runtime, completion([7] * (CONTEXT - 1), max_tokens=1))
        assert (full.status, full.last.output_tokens) == (200, 1)
