"""An async class: each row waits for something slow, and the rows of a batch wait together."""

import asyncio


class Lookup:
    """A key to what a slow store (here: a function that takes 20 ms) knows of it."""

    inputs = {"key": "INT64"}
    outputs = {"value": "text"}

    async def load(self, settings):
        self.wait_s = settings.get("wait_ms", 20) / 1000

    async def predict(self, batch):
        return await asyncio.gather(*(self._fetched(key) for key in batch["key"]))

    async def _fetched(self, key):
        await asyncio.sleep(self.wait_s)
        return f"value of {int(key)}"
