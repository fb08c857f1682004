"""Prints what sentence-transformers answers, as JSON: `python answers.py FOLDER < input.json`.

The input is a list of texts, whose vectors it prints, or of pairs of texts, whose logits it prints.
"""

from __future__ import annotations

import json
import sys

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer


def main() -> None:
    folder, rows = sys.argv[1], json.load(sys.stdin)
    if isinstance(rows[0], str):
        answers = SentenceTransformer(folder, device="cpu").encode(rows, batch_size=8)
    else:
        encoder = CrossEncoder(folder, device="cpu")
        pairs = [tuple(row) for row in rows]
        answers = encoder.predict(pairs, batch_size=8, activation_fn=torch.nn.Identity())
    json.dump(answers.tolist(), sys.stdout)


if __name__ == "__main__":
    main()
