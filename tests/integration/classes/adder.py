"""What the synthetic runtime does with a row, as a class of a user's own."""

import time


class Adder:
    inputs, outputs = {"ids": "INT64[?]"}, {"sum": "FP32"}

    def load(self, settings):
        self.settings = settings

    def predict(self, batch):
        time.sleep(self.settings["base_ms"] / 1000)
        if any(set(self.settings.get("fail_ids", ())) & set(row) for row in batch["ids"]):
            raise ValueError("these are not added")
        return {"sum": [row.sum() for row in batch["ids"]]}
