"""What does it cost to tell gateways of a prompt's blocks, from the engine to the prefix tree?

`python -m tests.deployments.benches.told_blocks`: 30 prompts of 30,000 tokens each, all new, in
blocks of 16. Prints the least processor time of each part, for one prompt. What happens in vLLM's
process is left out where vLLM is missing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import process_time
from types import SimpleNamespace

from deployments.contract.channel.stream_messages import packed, unpacked
from deployments.replica.block_index import BlockIndex
from deployments.replica.told_blocks import ToldBlocks
from routers.api.events import BlocksHeld
from routers.estimates.prefix_tree import PrefixTree

BLOCKS, PROMPTS = 1875, 30


def timed(what: str, act: Callable[[int], object]) -> None:
    took_s = []
    for prompt in range(PROMPTS):
        began = process_time()
        act(prompt)
        took_s.append(process_time() - began)
    print(f"{what}: {1e3 * min(took_s):.2f} ms")


def numbers() -> list[tuple[int, ...]]:
    return [
        tuple(int.from_bytes(os.urandom(8), "little") for _ in range(BLOCKS))
        for _ in range(PROMPTS)
    ]


def engine() -> None:
    try:
        from runtimes.vllm import block_events
    except ImportError:
        return
    full = [[os.urandom(32) for _ in range(BLOCKS)] for _ in range(PROMPTS)]
    held = {each: 1 for prompt in full for each in prompt}
    pool = SimpleNamespace(get_cached_block=lambda block, groups: held.get(block))
    changes = block_events._Changes(pool)
    changes._all = False

    def reads(at: int) -> None:
        request = SimpleNamespace(num_prompt_tokens=16 * BLOCKS, block_hashes=full[at])
        changes.asked(request, {block_events._REQUEST: 1})
        changes.publish(SimpleNamespace(events=[SimpleNamespace(block_hashes=full[at])]))
        changes.take()

    timed("in the engine's process, beside making its events", reads)


async def main() -> None:
    hashes, blocks, index, tree = numbers(), numbers(), BlockIndex(), PrefixTree(262_144)
    index.replace(())
    told = ToldBlocks(index, lambda: None)
    told.take(0.0, ends=True)
    tree.told(BlocksHeld("r", whole=True))

    def locate(at: int) -> None:
        index.locate(index.ask(hashes[at], 16 * BLOCKS), blocks[at], 16 * BLOCKS)

    def tell(at: int) -> None:
        index.update(blocks[at], ())
        assert told.take(1.0 + at, ends=True) is not None

    def follow(at: int) -> None:
        tree.told(BlocksHeld("r", unpacked(packed(hashes[at]))))
        tree.read("r", hashes[at], 1)
        tree.done("r", hashes[at])

    engine()
    timed("in the replica, as a request comes", locate)
    timed("in the replica, as the engine has read it, and to tell a gateway", tell)
    timed("in each gateway", follow)
    told.close()


if __name__ == "__main__":
    asyncio.run(main())
