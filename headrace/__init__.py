"""What a Python class of your own needs to be served by Headrace (`runtime: python`).

    class Iris:
        inputs, outputs = {"flower": "FP32[4]"}, {"kind": "INT64"}

        def load(self, settings): ...
        def predict(self, batch):
            return {"kind": self.model.predict(batch["flower"].stacked)}

A class need not import this package: `RowError` is for rows that fail singly, the other names are
for annotations. Nothing of the platform is imported here. docs/python.md is the guide.
"""

from headrace.batch import Batch, Column, RowError
from headrace.declaration import Settings

__all__ = ["Batch", "Column", "RowError", "Settings"]
