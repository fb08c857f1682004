"""What each stream backend does with adapters: three, of which it holds two at once."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest
from api_suite import ASKED, USER, asked, counted, events, streamed_text, text_of
from stream_cases import MODEL, ask, chat, completion, hear

from runtimes import adapter_files
from runtimes.types import Adapter, AdapterLoad, StreamRuntime
from tests.runtimes.adapter_folders import write_adapter

PLACES = 2


def adapters(folder: Path, hidden: int, layers: int) -> dict[str, Adapter]:
    """And `broken`, which has another model's shapes, and `gone`, which is not there."""
    for seed, name in enumerate(("law", "code", "sql"), 1):
        write_adapter(folder / name, hidden, layers, seed=seed)
    write_adapter(folder / "broken", 2 * hidden, layers)
    return {name: made(folder / name) for name in ("law", "code", "sql", "broken", "gone")}


def made(folder: Path) -> Adapter:
    def files() -> tuple[Path, str]:
        adapter_files.check(folder, None)
        weights = (folder / adapter_files.WEIGHTS).read_bytes()
        return folder, hashlib.sha256(weights).hexdigest()

    return Adapter(str(folder), files)


@dataclass
class Adapted:
    runtime: StreamRuntime
    folder: Path
    adapters: dict[str, Adapter]  # which it was given

    async def says(self, adapter: str = "", **fields: object) -> str:
        heard = await hear(self.runtime, completion(model=named(adapter), **fields))
        assert heard.status == 200, heard.data
        page = heard.page()
        assert page["model"] == named(adapter), "callers see the name that they asked for"
        return str(page["choices"][0]["text"])

    async def load(self) -> AdapterLoad:
        found = (await self.runtime.health()).adapters
        assert found is not None
        return found


def named(adapter: str) -> str:
    return f"{MODEL}:{adapter}" if adapter else MODEL


def error_of(data: bytes) -> Mapping[str, object]:
    found: Mapping[str, object] = json.loads(data)["error"]
    return found


class AdapterSuite:
    async def test_each_adapter_answers_as_itself(self, adapted: Adapted) -> None:
        said = {name: await adapted.says(name) for name in ("", "law", "code", "sql")}
        assert len(set(said.values())) == 4
        again = {name: await adapted.says(name) for name in reversed(said)}
        assert again == said
        held = (await adapted.load()).held
        assert len(held) == PLACES

    async def test_a_chat_is_streamed_by_an_adapter_too(self, adapted: Adapted) -> None:
        plain, law = [
            await hear(adapted.runtime, chat(model=named(name), stream=True), "chat")
            for name in ("", "law")
        ]
        assert law.status == 200
        assert law.texts() != plain.texts()
        assert {event["model"] for event in law.events()} == {named("law")}

    @pytest.mark.parametrize("endpoint", ASKED)
    async def test_it_answers_in_every_api_whole_and_streamed(
        self, adapted: Adapted, endpoint: str
    ) -> None:
        plain, law = [
            (await hear(adapted.runtime, asked(endpoint, model=named(name)), endpoint)).page()
            for name in ("", "law")
        ]
        assert law["model"] == named("law")
        assert text_of(law) != text_of(plain)
        body = asked(endpoint, model=named("law"), stream=True)
        found = events(await hear(adapted.runtime, body, endpoint))
        assert streamed_text(found) == text_of(law)
        pages = [each.get("message") or each.get("response") for each in found]
        assert {page["model"] for page in pages if page} == {named("law")}

    async def test_its_tokens_are_counted_without_loading_it(self, adapted: Adapted) -> None:
        before = await adapted.load()
        body = counted(prompt="one two three", model=named("gone"))
        assert (await hear(adapted.runtime, body, "tokenize")).page()["count"] > 0
        body = counted(messages=USER, model=named("gone"))
        assert (await hear(adapted.runtime, body, "count_tokens")).page()["input_tokens"] > 0
        after = await adapted.load()
        assert (after.loads, after.failures) == (before.loads, before.failures)

    async def test_it_is_loaded_once_for_all_who_ask_at_once(self, adapted: Adapted) -> None:
        await adapted.says("code"), await adapted.says("sql")
        before = await adapted.load()
        said = await asyncio.gather(*(adapted.says("law") for _ in range(5)))
        assert len(set(said)) == 1
        after = await adapted.load()
        assert after.loads == before.loads + ("law" not in before.held)
        assert after.load_s > 0.0
        assert "law" in after.held

    async def test_the_same_name_with_new_content_answers_anew(self, adapted: Adapted) -> None:
        """Even a prompt that is cached is read again."""
        words = "one two three " * 20
        before = await adapted.says("law", prompt=words)
        shutil.rmtree(adapted.folder / "law")
        weights = json.loads((adapted.folder / "sizes").read_text())
        write_adapter(adapted.folder / "law", *weights, seed=77)
        assert await adapted.says("law", prompt=words) == before, "it is still loaded"
        for name in ("code", "sql") * 20:  # which are used more than it
            await adapted.says(name, max_tokens=1)
        heard = await hear(adapted.runtime, completion(model=named("law"), prompt=words))
        assert heard.page()["choices"][0]["text"] != before
        assert heard.last.cached_tokens == 0

    async def test_a_prompt_that_the_model_has_read_is_read_again(self, adapted: Adapted) -> None:
        words = "five six seven " * 20
        await adapted.says("", prompt=words)
        heard = await hear(adapted.runtime, completion(model=named("code"), prompt=words))
        assert heard.last.cached_tokens == 0
        again = await hear(adapted.runtime, completion(model=named("code"), prompt=words))
        assert again.last.cached_tokens > 0

    async def test_one_that_cannot_be_loaded_fails_its_requests_alone(
        self, adapted: Adapted, name: str = "gone"
    ) -> None:
        before = await adapted.load()
        other = asyncio.create_task(adapted.says("code"))
        for _ in range(3):
            heard = await hear(adapted.runtime, completion(model=named(name)))
            assert heard.status == 503
            said = error_of(heard.data)
            assert said["message"] == (
                f"the adapter {name!r} cannot be loaded now; the server's log says why"
            )
            assert (said["code"], said["type"]) == (503, "ServiceUnavailableError")
        for endpoint in ASKED:
            heard = await hear(adapted.runtime, asked(endpoint, model=named(name)), endpoint)
            assert (heard.status, name in str(error_of(heard.data)["message"])) == (503, True)
        await other
        after = await adapted.load()
        assert after.failures == before.failures + 1, "it was tried again at once"
        assert name not in after.held
        assert name in after.failing

    async def test_one_that_is_not_there_gets_openais_error(self, adapted: Adapted) -> None:
        heard = await hear(adapted.runtime, completion(model=named("other")))
        assert heard.status == 404
        assert "does not exist" in str(error_of(heard.data)["message"])

    async def test_adapters_change_as_it_runs(self, adapted: Adapted) -> None:
        law, code = await adapted.says("law"), await adapted.says("code")
        adapted.adapters["new"] = adapted.adapters["code"]
        assert await adapted.says("new") == code
        adapted.adapters["new"] = adapted.adapters["law"]
        assert await adapted.says("new") == law, "its source is another now"
        del adapted.adapters["new"]
        heard = await hear(adapted.runtime, completion(model=named("new")))
        assert heard.status == 404

    async def test_who_leaves_gives_the_place_back(self, adapted: Adapted) -> None:
        for name in ("law", "code"):
            request = ask(completion(model=named(name), max_tokens=200, stream=True))
            async with aclosing(adapted.runtime.run(request)) as chunks:
                async for _ in chunks:
                    break
        assert await asyncio.wait_for(adapted.says("sql"), 10)

    async def test_all_have_their_turn_where_more_are_asked_for_than_it_holds(
        self, adapted: Adapted
    ) -> None:
        names = ("law", "code", "sql") * 4
        said = await asyncio.wait_for(asyncio.gather(*map(adapted.says, names)), 60)
        assert len(set(said)) == 3
