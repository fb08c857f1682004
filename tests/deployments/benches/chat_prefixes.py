"""How far off is a gateway's prediction of what an engine has cached of a chat?

`python -m tests.deployments.benches.chat_prefixes`: conversations of four turns through the engine
for small models, whose template puts tokens in that no gateway knows of. Prints, for each turn, the
mean share of the prompt that was predicted to be cached and that was, and by how much the
prediction was too high at worst; with the model's tokeniser, and with four bytes a token.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from deployments.gateway.http.protocols.openai_generation import decode_chat
from deployments.gateway.prompts import Ids, pseudo_ids
from deployments.preprocess.tokenizer import TextTokenizer
from deployments.replica.block_index import BlockIndex
from examples import make_llm
from loadtests.benches import small_generation
from routers.estimates.prefix_tree import blocks_of
from runtimes import catalog
from runtimes.types import RuntimeSettings, StreamRequest

CONTEXT, BLOCK, CONVERSATIONS, TURNS = 1024, 16, 40, 4
WORDS = [*small_generation.WORDS, "queue", "batch", "token"]


class Chats:
    def __init__(self, folder: Path, tokenizer: TextTokenizer | None) -> None:
        self.index = BlockIndex()
        self.settings = RuntimeSettings(
            "llm", "torch", folder / "llm", folder / "cache", task="generate", threads=1,
            max_length=CONTEXT, options={"max_sequences": 2, "cache_tokens": 8000},
            blocks=self.index,
        )  # fmt: skip
        self.tokenizer = tokenizer
        self.shares: list[list[tuple[float, float]]] = [[] for _ in range(TURNS)]

    async def play(self) -> None:
        runtime, rng = catalog.create_stream(self.settings), Random(1)
        await runtime.load()

        def say(least: int, most: int) -> str:
            return " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, most)))

        systems = [say(60, 150) for _ in range(6)]
        for _ in range(CONVERSATIONS):
            messages = [{"role": "system", "content": rng.choice(systems)}]
            for turn in range(TURNS):
                messages.append({"role": "user", "content": say(3, 30)})
                answer = await self._ask(runtime, messages, turn)
                messages.append({"role": "assistant", "content": answer})
        await runtime.close()

    async def _ask(self, runtime: Any, messages: list[dict[str, str]], turn: int) -> str:
        said = {"model": "llm", "messages": messages, "max_tokens": 20, "temperature": 0}
        body = json.dumps({**said, "ignore_eos": True}).encode()
        texts = decode_chat(body).texts or []
        found: Sequence[Ids] = (
            pseudo_ids(texts) if self.tokenizer is None else self.tokenizer.encode(texts)
        )
        ids = [int(each) for each in found[0]]
        hashes, held = blocks_of(ids, BLOCK), set(self.index.held())
        known = next((at for at, each in enumerate(hashes) if each not in held), len(hashes))
        request = StreamRequest(
            "r", "chat", body, hashes=hashes, hashed_tokens=len(ids)
        )  # fmt: skip
        chunks = [chunk async for chunk in runtime.run(request)]
        last = chunks[-1]
        predicted = min(known * BLOCK, len(ids) - 1) / len(ids)
        self.shares[turn].append((predicted, last.cached_tokens / last.input_tokens))
        return str(json.loads(last.data)["choices"][0]["message"]["content"])


async def main() -> None:
    folder = Path(tempfile.mkdtemp())
    model = make_llm.make(folder / "llm", make_llm.Sizes(context=CONTEXT))
    own = TextTokenizer((model / "tokenizer.json").read_bytes(), CONTEXT, False, 1 << 20)
    for name, tokenizer in (("the model's tokeniser", own), ("four bytes a token", None)):
        chats = Chats(folder, tokenizer)
        await chats.play()
        for turn, shares in enumerate(chats.shares, 1):
            predicted, found = (fmean(each[at] for each in shares) for at in (0, 1))
            most = max(one - other for one, other in shares)
            print(f"{name}, turn {turn}: predicted {predicted:.2f}, found {found:.2f}, "
                  f"at most {most:.2f} too much")  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main())
