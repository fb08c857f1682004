"""A torch module with preprocessing and postprocessing of its own: which language is a text in?"""

import numpy as np
import torch

from headrace import RowError

LANGUAGES = {
    "en": "the river turns the wheel and the mill grinds what the farmers bring in the autumn",
    "de": "der fluss treibt das rad und die muehle mahlt was die bauern im herbst bringen",
    "fr": "la riviere fait tourner la roue et le moulin moud ce que les fermiers apportent",
}
LETTERS = "abcdefghijklmnopqrstuvwxyz "


class Language:
    """A text to the name of its language, and how sure the model is."""

    inputs = {"text": "text"}
    outputs = {"language": "text", "score": "FP32"}

    def load(self, settings):
        torch.manual_seed(0)
        torch.set_num_threads(settings.threads)
        self.names = list(LANGUAGES)
        self.module = torch.nn.Linear(len(LETTERS) ** 2, len(self.names))
        pieces = [
            (text[at : at + 25], label)
            for label, text in enumerate(LANGUAGES.values())
            for at in range(0, len(text) - 20, 3)
        ]
        counts = torch.from_numpy(np.stack([self._pairs(piece) for piece, _ in pieces]))
        labels = torch.tensor([label for _, label in pieces])
        optimizer = torch.optim.Adam(self.module.parameters(), lr=0.05)
        for _ in range(100):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self.module(counts), labels).backward()
            optimizer.step()

    def example(self, length):
        return {"text": ("river " * length)[: 4 * length]}

    def predict(self, batch):
        counts = [self._pairs(text) for text in batch["text"]]
        with torch.inference_mode():
            scores = self.module(torch.from_numpy(np.stack(counts))).softmax(1)
        best, names = scores.max(1)
        named = [
            self.names[name] if count.any() else RowError("the text has no letters")
            for name, count in zip(names, counts)
        ]
        return {"language": named, "score": best.numpy()}

    @staticmethod
    def _pairs(text):
        """float32 [letters²]: the share of each pair of letters."""
        places = np.array([LETTERS.find(each) for each in text.lower()], np.int64)
        places = places[places >= 0]
        pairs = places[:-1] * len(LETTERS) + places[1:]
        found = np.bincount(pairs, minlength=len(LETTERS) ** 2).astype(np.float32)
        return found / max(1, len(pairs))
