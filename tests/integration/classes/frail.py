"""A class that does what its rows say: answers, or what no class should do."""

import os
import time

import numpy as np

from headrace import RowError


class Frail:
    inputs, outputs = {"what": "text"}, {"letters": "FP32"}

    def load(self, settings):
        self.settings, self.kept = settings, []

    def predict(self, batch):
        rows = list(batch["what"])
        time.sleep(0.1)  # in which others come, so that rows share batches
        for what in rows:
            if what == "raise":
                raise KeyError("a secret of the class")
            if what == "exit":
                os._exit(3)
            if what == "sysexit":
                raise SystemExit(0)
            if what == "hang":
                time.sleep(3600)
            while what == "leak":
                self.kept.append(np.ones(4 << 20))  # 32 MiB that is really there
        letters = np.array([len(what) for what in rows], "f4")
        if "lost" in rows:
            return letters[1:]
        if "wide" in rows:
            return letters[:, None]
        if "words" in rows:
            return rows
        letters[[what == "nan" for what in rows]] = np.nan
        own = RowError("its own reason", invalid=False)
        return [own if what == "own" else count for what, count in zip(rows, letters, strict=True)]
